import asyncio
import random

import pytest

from gateway.images.fair_limiter import FairLimiter
from tests.support import until


async def entered(limiter: FairLimiter, *works: tuple[str, int]) -> list[str]:
    """Let works wait in this order behind one that holds the only place; return the order they get it in."""
    order: list[str] = []
    await limiter.enter("first", 1)

    async def work(client: str, weight: int) -> None:
        await limiter.enter(client, weight)
        order.append(f"{client}{weight}")
        limiter.leave(client, weight)

    tasks = [asyncio.create_task(work(*one)) for one in works]
    await until(lambda: limiter.waiting == len(works))
    limiter.leave("first", 1)
    await asyncio.gather(*tasks)
    return order


async def test_clients_take_turns_and_of_one_client_light_work_passes_heavy_work() -> None:
    works = [("a", 9), ("a", 8), ("a", 1), ("b", 7), ("c", 2), ("c", 3)]
    assert await entered(FairLimiter(1, 10, step=1), *works) == ["a1", "b7", "c2", "a9", "c3", "a8"]


async def test_a_heavy_piece_is_not_passed_for_ever() -> None:
    order = await entered(FairLimiter(1, 10, step=2), ("a", 9), *[("a", 1)] * 20)
    assert order.index("a9") == 3


async def test_weight_is_bounded_in_all_and_a_light_one_passes_a_heavy_one() -> None:
    limiter = FairLimiter(3, 10)
    await limiter.enter("a", 8)
    heavy = asyncio.create_task(limiter.enter("b", 3))
    await limiter.enter("c", 2)
    assert not heavy.done()
    limiter.leave("c", 2)
    assert not heavy.done()
    limiter.leave("a", 8)
    await heavy


async def test_when_a_heavy_one_leaves_all_places_are_used_by_one_clients_backlog() -> None:
    limiter = FairLimiter(3, 10)
    running = most = 0
    await limiter.enter("a", 10)  # leaves no capacity: the other places stay empty

    async def work() -> None:
        nonlocal running, most
        await limiter.enter("b", 3)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        limiter.leave("b", 3)

    backlog = [asyncio.create_task(work()) for _ in range(20)]
    await until(lambda: limiter.waiting == 20)
    limiter.leave("a", 10)
    assert limiter.waiting == 17
    await asyncio.gather(*backlog)
    assert most == 3


async def test_all_places_that_are_added_are_used_at_once() -> None:
    limiter = FairLimiter(1, 0)
    await limiter.enter("a", 0)
    backlog = [asyncio.create_task(limiter.enter("a", 0)) for _ in range(5)]
    await until(lambda: limiter.waiting == 5)
    limiter.resize(4)
    assert limiter.waiting == 2
    for task in backlog:
        task.cancel()
    await asyncio.gather(*backlog, return_exceptions=True)


async def test_who_gives_up_is_forgotten() -> None:
    limiter = FairLimiter(1, 10)
    await limiter.enter("a", 1)
    left = [asyncio.create_task(limiter.enter("b", 1)) for _ in range(100)]
    await asyncio.sleep(0)
    assert limiter.waiting == 100
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    limiter.leave("a", 1)
    assert limiter.waiting == 0
    await limiter.enter("c", 10)


async def test_who_gives_up_when_it_is_its_turn_passes_it_on() -> None:
    limiter = FairLimiter(1, 1)
    await limiter.enter("a", 1)
    second, third = (asyncio.create_task(limiter.enter("b", 1)) for _ in range(2))
    await asyncio.sleep(0)
    limiter.leave("a", 1)
    second.cancel()  # its turn has come, and it does not know yet
    with pytest.raises(asyncio.CancelledError):
        await second
    await third


async def test_every_mix_of_work_and_giving_up_ends_with_all_places_free() -> None:
    rng = random.Random(1)
    limiter = FairLimiter(3, 10)
    inside = weights = 0

    async def work(client: str, weight: int) -> None:
        nonlocal inside, weights
        await limiter.enter(client, weight)
        inside, weights = inside + 1, weights + weight
        assert inside <= 3
        assert weights <= 10
        try:
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        finally:
            inside, weights = inside - 1, weights - weight
            limiter.leave(client, weight)

    tasks = [asyncio.create_task(work(rng.choice("abc"), rng.randrange(1, 11))) for _ in range(300)]
    for task in tasks:
        if rng.random() < 0.3:
            task.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (inside, limiter.waiting) == (0, 0)
    for _ in range(3):
        await limiter.enter("d", 3)


async def test_a_turn_ends_with_its_work_and_not_with_who_waits_for_it() -> None:
    limiter = FairLimiter(1, 10)
    go_on = asyncio.Event()
    done: list[str] = []

    async def work(name: str) -> str:
        await go_on.wait()
        done.append(name)
        return name

    first = asyncio.create_task(limiter.run("a", 1, lambda: work("first")))
    await asyncio.sleep(0)
    second = asyncio.create_task(limiter.run("a", 1, lambda: work("second")))
    await until(lambda: limiter.waiting)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert limiter.waiting == 1
    go_on.set()
    assert await second == "second"
    assert done == ["first", "second"]


async def test_work_that_fails_ends_its_turn_though_nobody_is_told() -> None:
    limiter = FairLimiter(1, 10)
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        raise ValueError

    left = asyncio.create_task(limiter.run("a", 1, work))
    kept = asyncio.create_task(limiter.run("b", 1, work))
    await asyncio.sleep(0)
    left.cancel()
    go_on.set()
    with pytest.raises(ValueError):  # noqa: PT011 - its own
        await kept
    await limiter.enter("c", 10)


async def test_places_may_become_more_or_fewer_while_some_work() -> None:
    limiter = FairLimiter(1, 0)
    await limiter.enter("a", 0)
    second, third = (asyncio.create_task(limiter.enter("b", 0)) for _ in range(2))
    await until(lambda: limiter.waiting == 2)
    limiter.resize(2)
    await second
    limiter.resize(1)
    limiter.leave("a", 0)
    await asyncio.sleep(0)
    assert limiter.waiting == 1
    limiter.leave("b", 0)
    await third


async def test_the_last_place_may_be_for_a_client_that_has_none() -> None:
    limiter = FairLimiter(3, 0, reserved=1)
    for _ in range(2):
        await limiter.enter("a", 0)
    third = asyncio.create_task(limiter.enter("a", 0))
    await until(lambda: limiter.waiting)
    assert not third.done()
    await limiter.enter("b", 0)
    limiter.leave("b", 0)
    assert limiter.waiting == 1
    limiter.leave("a", 0)
    await third
    limiter.resize(1)
    for _ in range(2):
        limiter.leave("a", 0)
    await limiter.enter("a", 0)  # the only one


async def test_whose_work_took_long_comes_after_others_until_that_is_forgotten() -> None:
    now = 0.0
    limiter = FairLimiter(1, 10, now=lambda: now)
    limiter.charge("slow", 40.0)
    limiter.charge("quick", 1.0)
    assert await entered(limiter, ("slow", 1), ("slow", 2), ("quick", 1), ("new", 1), ("quick", 2)) == [
        "new1",
        "quick1",
        "quick2",
        "slow1",
        "slow2",
    ]
    now = 3600.0
    limiter.charge("quick", 1.0)
    assert await entered(limiter, ("quick", 1), ("slow", 1)) == ["slow1", "quick1"]


async def test_of_many_clients_those_with_the_least_time_are_forgotten() -> None:
    limiter = FairLimiter(1, 10, now=lambda: 0.0)
    limiter.charge("slow", 100.0)
    for number in range(5000):
        limiter.charge(str(number), 1.0)
    assert len(limiter._used) <= 1024
    assert "slow" in limiter._used
