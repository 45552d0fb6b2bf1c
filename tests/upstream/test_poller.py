import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config, parse
from gateway.config.schema import Profile
from gateway.engines.vllm_page import EngineCounts, metrics_page
from gateway.errors import EngineFailed, EngineTooSlow
from gateway.model import Engine, Speculation
from gateway.policy.account.acceptance import Sample, Source
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.ledger import AnswerKind
from gateway.state.snapshot import EngineStatus
from gateway.state.store import State
from gateway.upstream.client import EngineClient
from gateway.upstream.poller import Poller, health_fault, mismatch
from gateway.wire.vllm.engine import read_metrics
from tests.state.world import CURVES
from tests.support import LONG_S, FakeEngine, served, until

CONFIG = """
model: m
pools:
  plain: {engines: ["http://e"]}
  mtp3: {engines: ["http://f"], speculative_config: {method: mtp, num_speculative_tokens: 3}}
routes: {text: {pools: [plain]}, table: {}}
polling: {scrape_s: 0.000001}
"""
E = Engine("e", "http://e", "plain", 0)
F = Engine("f", "http://f", "mtp3", 3)


def config(version: object = None) -> Config:
    """The configuration above; with a version, text has a profile measured on it."""
    settings = parse(CONFIG, "routes.yaml", Path(), {})
    if version is None:
        return settings
    profile = Profile(route="text", pools={"plain": ((1, 10.0),)}, meta={"engine_version": version})
    return settings.completed(profiles={"text": profile})


def page(
    running: int = 0, waiting: int = 0, *, tokens: int = 0, positions: int = 0, awake: bool = True
) -> bytes:
    """A metrics page as vLLM writes it, with as many draft positions."""
    speculation = Speculation(0, 0, 0, (0,) * positions) if positions else None
    counts = EngineCounts(running, waiting, generation_tokens=tokens, speculation=speculation, awake=awake)
    return metrics_page(counts, "m").encode()


def counting(drafts: int, finished: int) -> bytes:
    """The page of an engine at depth 3 that has drafted so much, and ended so many requests."""
    speculation = Speculation(drafts, drafts, 3 * drafts, (drafts, 0, 0))
    return metrics_page(EngineCounts(finished={"stop": finished}, speculation=speculation), "m").encode()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class ScriptedClient:
    """Answers health checks from a list, of which the last goes on for ever; silence takes its time.

    `pages` are by path: bytes, an error, or a function that is called while the page is under way.
    """

    def __init__(self, clock: Clock, *answers: bool | None) -> None:
        self.clock = clock
        self.answers = list(answers)
        self.asked = 0
        self.pages: dict[str, bytes | Exception | Callable[[], bytes]] = {"/metrics": page()}
        self.read: list[str] = []
        self.words = ["it refuses connections"]
        self.code = ""

    async def check_health(self, engine: Engine, within_s: float) -> None:
        if engine.name == "broken":
            raise UnicodeError("label too long")
        if engine.name == "stuck":
            await asyncio.Event().wait()
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            self.clock.now += within_s
            raise EngineTooSlow("no answer", code=self.code)
        if not answer:
            raise EngineFailed(self.words.pop(0) if len(self.words) > 1 else self.words[0])

    async def page(self, engine: Engine, path: str, within_s: float) -> bytes:
        self.read.append(f"{engine.name}{path}")
        found = self.pages.get(path, EngineFailed(f"the engine answered {path} with HTTP 404"))
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, bytes) else found()


class World:
    """A state, its scripted engines and a poller over them."""

    def __init__(self, *answers: bool | None, engines: tuple[Engine, ...] = (E,)) -> None:
        self.clock = Clock()
        self.client = ScriptedClient(self.clock, *answers)
        self.state = State(Fleet.of(config()), engines, self.clock, Random(1))
        self.hung: list[str] = []

    @asynccontextmanager
    async def polled(self) -> AsyncIterator[None]:
        poller = Poller(
            self.state,
            self.client,  # type: ignore[arg-type]
            self.clock,
            Random(1),
            lambda engine: self.hung.append(engine.name),
        )
        task = asyncio.create_task(poller.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def stood(self, polls: int) -> list[bool]:
        """How the first engine stood after each poll."""
        stood: list[bool] = []
        async with self.polled():
            while len(stood) < polls:
                await until(lambda: self.client.asked > len(stood))
                stood.append(self.status().view.up)
        return stood

    async def polls(self, more: int) -> None:
        before = self.client.asked
        async with asyncio.timeout(LONG_S):
            # Not by `until`, whose pauses would let more polls pass.
            while self.client.asked < before + more:  # noqa: ASYNC110 - an event would not count them
                await asyncio.sleep(0)

    def status(self, name: str = "e") -> EngineStatus:
        return next(engine for engine in self.state.snapshot().engines if engine.view.engine.name == name)

    def lease(self, route: str = "text") -> Lease:
        lease = self.state.take(route)
        assert isinstance(lease, Lease)
        return lease


async def test_an_engine_goes_up_and_down_with_its_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stood = await World(True, True, False).stood(30)
    assert stood[0]
    assert not stood[-1]
    assert [record.getMessage() for record in caplog.records] == [
        "engine e is up",
        "engine e is down: it refuses connections",
    ]


async def test_short_silence_is_forgiven_and_long_silence_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert all(await World(True, None, None, True).stood(20))
    assert not (await World(True, None).stood(30))[-1]
    assert "engine e is down: 3 health checks in a row had no answer in 2 s" in caplog.text


async def test_an_engine_that_is_down_from_the_start_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(False)
    assert not any(await world.stood(20))
    assert [record.getMessage() for record in caplog.records] == ["engine e is down: it refuses connections"]
    assert world.client.read == []


@pytest.mark.parametrize(
    ("cause", "code", "told"),
    [
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "x"),
            "engine_unreachable",
            "no connection to it: it refuses connections (Connection refused); check that it runs",
        ),
        (
            ssl.SSLError(1, "wrong version number"),
            "engine_unreachable",
            "no connection to it: it does not speak TLS as expected; check whether its URL",
        ),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "engine_unreachable",
            "no connection to it: its name cannot be resolved (Name or service not known); check the name's",
        ),
        (None, "engine_died", "WORDS; check its log, whether its URL should begin with https://"),
        (None, "", "WORDS"),
    ],
)
def test_why_a_health_check_failed_is_told_with_what_to_do(
    cause: Exception | None, code: str, told: str
) -> None:
    error = EngineFailed("WORDS", code=code)
    error.__cause__ = cause
    assert health_fault(error).startswith(told)


async def test_each_reason_for_being_down_is_told_once_and_the_latest_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(False)
    reasons = [f"reason {number}" for number in range(100)]
    world.client.words = ["it refuses connections", "it answers HTTP 404", "it refuses connections", *reasons]
    async with world.polled():
        await until(lambda: world.status().fault == "reason 99")
    told = [message for message in caplog.messages if message.startswith("engine e is down: ")]
    assert told[:3] == [
        "engine e is down: it refuses connections",
        "engine e is down: it answers HTTP 404",
        "engine e is down: reason 0",
    ]
    assert len(told) == len(set(told)) == 8
    world.client.answers = [True]
    async with world.polled():
        await until(lambda: world.status().view.up)
    assert world.status().fault == ""


@pytest.mark.parametrize(("code", "told"), [("connect_timeout", " (no answer)"), ("engine_slow", "")])
async def test_an_engine_that_takes_no_connection_is_told_from_one_that_does_not_answer(
    code: str, told: str
) -> None:
    world = World(None)
    world.client.code = code
    async with world.polled():
        await until(lambda: world.status().fault)
    assert world.status().fault == f"3 health checks in a row had no answer in 2 s{told}"


async def test_one_engines_trouble_and_slowness_are_not_the_others(caplog: pytest.LogCaptureFixture) -> None:
    broken, stuck = (Engine(name, f"http://{name}", "plain", 0) for name in ("broken", "stuck"))
    world = World(True, engines=(broken, stuck, E))
    async with world.polled():
        await world.polls(10)
    assert [world.status(name).view.up for name in ("broken", "stuck", "e")] == [False, False, True]
    assert "broken cannot be polled" in caplog.text


async def test_a_fault_of_ours_in_a_poll_neither_ends_the_watch_nor_takes_the_engine_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(True)
    async with world.polled():
        await until(lambda: world.status().view.up)
        world.client.pages["/metrics"] = ZeroDivisionError()
        await world.polls(5)
        assert world.status().view.up
    assert "the poll of engine e failed" in caplog.text


# --- load


async def test_what_an_engine_has_beyond_our_own_requests_is_others() -> None:
    world = World(True)
    world.client.pages["/metrics"] = page(running=5, waiting=2)
    async with world.polled():
        await until(lambda: world.status().view.up)
        with world.lease(), world.lease():
            await world.polls(3)
            assert (world.status().view.ours, world.status().view.load) == (2, 7)


async def test_a_simulated_engine_is_known_as_one() -> None:
    world = World(True)
    world.client.pages["/metrics"] = page()
    async with world.polled():
        await world.polls(2)
        assert not world.status().simulated
        world.client.pages["/metrics"] = b"# simulated engine, fit h100-9b\n" + page()
        await until(lambda: world.status().simulated)


async def test_an_engine_that_others_have_filled_is_not_taken_for_empty_when_it_comes_up() -> None:
    world = World(True)
    loads: list[int] = []
    world.client.pages["/metrics"] = page(running=300)
    waiter = world.state.wait("text", lambda: loads.append(world.status().view.load))
    async with world.polled():
        await until(lambda: world.status().view.up)
        assert world.status().view.load - (waiter.lease is not None) == 300


@pytest.mark.parametrize("counted", [1, 2, 3])
async def test_requests_of_ours_that_begin_while_the_page_is_under_way_are_not_taken_for_others(
    counted: int,
) -> None:
    world = World(True)

    async with world.polled():
        await until(lambda: world.status().view.up)
        leases = [world.lease()]

        def under_way() -> bytes:
            if len(leases) < 3:
                leases.extend((world.lease(), world.lease()))
            return page(running=counted)

        world.client.pages["/metrics"] = under_way
        await until(lambda: len(leases) == 3)
        await world.polls(1)
        assert world.status().view.load == 3


async def test_requests_of_ours_that_end_while_the_page_is_under_way_are_not_taken_for_others() -> None:
    world = World(True)
    async with world.polled():
        await until(lambda: world.status().view.up)
        lease = world.lease()
        seen: list[int] = []

        def under_way() -> bytes:
            lease.release()
            seen.append(world.status().view.load)
            return page(running=1) if len(seen) == 1 else page()

        world.client.pages["/metrics"] = under_way
        await until(lambda: len(seen) > 1)
    assert seen[:2] == [0, 0]


async def test_every_reading_has_its_age_and_tokens_their_rate() -> None:
    world = World(True)
    written = 0

    def write() -> bytes:
        nonlocal written
        written += 50
        world.clock.now += 0.5
        return page(tokens=written)

    world.client.pages["/metrics"] = write
    async with world.polled():
        await world.polls(10)
        assert world.status().reading_age_s == 0
        world.clock.now += 3
        assert world.status().reading_age_s == 3
    assert world.status().rate == pytest.approx(100)


async def test_an_engine_that_sleeps_gets_no_work_though_it_is_healthy() -> None:
    world = World(True)
    world.client.pages["/metrics"] = page(awake=False)
    async with world.polled():
        await world.polls(3)
        assert not world.status().view.up
        world.client.pages["/metrics"] = page(awake=True)
        await until(lambda: world.status().view.up)


@pytest.mark.parametrize(
    "failure",
    [
        EngineTooSlow("the engine's /metrics took over 2.0 s"),
        EngineFailed("HTTP 404"),
        b"<html>",
        b"\xff\x00",
    ],
)
async def test_metrics_that_cannot_be_read_change_nothing_and_are_told_once(
    failure: bytes | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world = World(True)
    world.client.pages["/metrics"] = page(running=4)
    async with world.polled():
        await until(lambda: world.status().view.load == 4)
        world.client.pages["/metrics"] = failure
        await world.polls(5)
        assert (world.status().view.load, world.status().view.up) == (4, True)
        world.client.pages["/metrics"] = page(running=2)
        await until(lambda: world.status().view.load == 2)
    told = [record.getMessage() for record in caplog.records if "metrics" in record.getMessage()]
    assert len(told) == 2
    assert told[0].startswith("the metrics of engine e cannot be read: ")
    assert told[1] == "the metrics of engine e can be read again"


async def test_an_engine_without_metrics_serves() -> None:
    world = World(True)
    del world.client.pages["/metrics"]
    assert (await world.stood(5))[-1]


# --- engines that hang


async def test_requests_that_wait_on_an_engine_that_hangs_are_told() -> None:
    world = World(True, None)
    lost: list[str] = []
    async with world.polled():
        await until(lambda: world.status().view.up)
        world.lease().on_lost = lambda: lost.append("e")
        await until(lambda: lost)
        assert not world.status().view.up
    assert world.clock.now - Clock.now >= 6


@pytest.mark.parametrize("working", [True, False])
async def test_an_engine_that_is_well_and_does_nothing_gives_its_work_up(working: bool) -> None:
    world = World(True)
    seconds = 0

    def metrics() -> bytes:
        nonlocal seconds
        seconds += 1
        world.clock.now += 1
        return page(running=1, tokens=seconds if working else 7)

    world.client.pages["/metrics"] = metrics
    told: list[int] = []
    async with world.polled():
        await until(lambda: world.status().view.up)
        lease = world.lease()
        lease.on_lost = lambda: told.append(seconds)
        await world.polls(70)
        assert world.status().view.up
    assert told == ([] if working else [pytest.approx(32, abs=2), pytest.approx(62, abs=3)])


async def test_an_engine_without_work_may_do_nothing() -> None:
    world = World(True)
    async with world.polled():
        await until(lambda: world.status().view.up)
        lease = world.lease()
        lease.on_lost = lambda: pytest.fail("it was given up")
        world.clock.now += 100
        await world.polls(5)


async def test_an_engine_that_streams_is_busy_and_not_hung() -> None:
    world = World(True, None)
    lost: list[str] = []
    async with world.polled():
        await until(lambda: world.status().view.up)
        lease = world.lease()
        lease.on_lost = lambda: lost.append("e")
        for _ in range(20):
            await world.polls(1)
            lease.record_activity()
        assert not lost
        assert not world.status().view.up
        await until(lambda: lost)


async def test_a_hung_engine_is_reported_once_for_each_silence() -> None:
    world = World(*[None] * 20, True, *[None] * 16, True)
    async with world.polled():
        await world.polls(40)
    assert world.hung == ["e", "e"]


# --- engines that come and go


async def test_engines_that_come_are_polled_and_engines_that_go_are_not() -> None:
    world = World(True)
    async with world.polled():
        await until(lambda: world.status().view.up)
        world.state.set_engines([F])
        await until(lambda: world.status("f").view.up)
        await until(lambda: world.client.read.count("f/metrics") > 2)
        before = world.client.read.count("e/metrics")
        await until(lambda: world.client.read.count("f/metrics") > 9)
        assert world.client.read.count("e/metrics") == before


async def test_an_engine_that_leaves_with_work_on_it_is_watched_to_the_end() -> None:
    world = World(True)
    async with world.polled():
        await until(lambda: world.status().view.up)
        with world.lease():
            world.state.set_engines([F])
            await until(lambda: world.status("f").view.up)
            before = world.client.read.count("e/metrics")
            await until(lambda: world.client.read.count("e/metrics") > before + 2)


async def test_an_engine_that_moves_to_another_pool_is_checked_against_that() -> None:
    world = World(True)
    async with world.polled():
        await until(lambda: world.status().view.up)
        assert world.status().mismatch == ""
        world.state.set_engines([Engine("e", "http://e", "mtp3", 3)])
        await until(lambda: "does not speculate" in world.status().mismatch)


async def test_a_reload_changes_how_often_engines_are_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.poller._FOLLOW_S", 0.000001)
    world = World(True)
    seldom = parse(CONFIG.replace("0.000001", "1000"), "routes.yaml", Path(), {})
    async with world.polled():
        await until(lambda: world.status().view.up)
        world.state.configure(Fleet.of(seldom), [E])
        asked = -1
        while asked < world.client.asked:
            asked = world.client.asked
            for _ in range(50):
                await asyncio.sleep(0)
        # However seldom that is, a new engine is asked at once.
        world.state.set_engines([E, F])
        await until(lambda: world.status("f").view.up)
        assert world.client.asked == asked + 1


# --- engines that are not what their pool says


def difference(
    engine: Engine, positions: int, settings: Config | None = None, version: str | None = None
) -> str:
    return mismatch(settings or config(), engine, read_metrics(page(positions=positions)), version)


def test_an_engine_as_its_pool_says_differs_in_nothing() -> None:
    assert difference(E, 0) == difference(F, 3) == ""


def test_a_deep_pools_engine_without_speculation_is_told() -> None:
    assert difference(F, 0) == (
        "it does not speculate (its metrics have no spec_decode series), "
        "but pool mtp3 has num_speculative_tokens 3"
    )


def test_a_plain_pools_engine_with_speculation_is_told() -> None:
    assert difference(E, 1) == (
        "it speculates (its metrics have spec_decode series), but pool plain has no speculative_config"
    )


def test_another_depth_is_told() -> None:
    assert difference(F, 1) == "it has num_speculative_tokens 1, but pool mtp3 has 3"


def test_an_engine_that_does_not_tell_positions_is_not_blamed_for_it() -> None:
    totals = page(positions=1).replace(b"accepted_tokens_per_pos_total", b"something_else_total")
    assert mismatch(config(), F, read_metrics(totals), None) == ""


def test_an_engine_of_a_pool_that_is_no_more_is_left_alone() -> None:
    assert difference(Engine("e", "http://e", "gone", 2), 0) == ""


@given(st.text(min_size=1), st.text(min_size=1))
def test_another_version_than_the_profiles_is_told(measured: str, version: str) -> None:
    told = difference(E, 0, config(measured), version)
    assert bool(told) == (measured != version)
    assert difference(E, 0, config(measured)) == difference(F, 3, config(measured), version) == ""


def test_all_differences_are_told_together() -> None:
    assert difference(E, 1, config("0.33.0"), "0.32.0") == (
        "it speculates (its metrics have spec_decode series), but pool plain has no speculative_config; "
        "it is version 0.32.0, but the profile of route text was measured on 0.33.0"
    )


async def test_the_version_is_asked_for_whenever_an_engine_comes_up() -> None:
    world = World(True, True, True, False, True)
    world.state.configure(Fleet.of(config("0.33.0")), [E])
    world.client.pages["/version"] = b'{"version":"0.32.0"}'
    async with world.polled():
        await until(lambda: "it is version 0.32.0" in world.status().mismatch)
        world.client.pages["/version"] = b'{"version":"0.33.0"}'
        await until(lambda: world.client.read.count("e/version") == 2)
        await until(lambda: world.status().mismatch == "")
        await world.polls(5)
    assert world.client.read.count("e/version") == 2


@pytest.mark.parametrize("answer", [EngineFailed("HTTP 404"), b"garbage", b'{"version": 1}', b"\xff"])
async def test_an_engine_that_does_not_tell_its_version_is_not_blamed_for_it(
    answer: bytes | Exception,
) -> None:
    world = World(True)
    world.state.configure(Fleet.of(config("0.33.0")), [E])
    world.client.pages["/version"] = answer
    async with world.polled():
        await world.polls(5)
        assert (world.status().mismatch, world.status().view.up) == ("", True)


async def test_an_engine_that_serves_another_model_is_a_mismatch_and_gets_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(True)
    world.client.pages["/v1/models"] = b'{"data":[{"id":"other"},{"id":"third"}]}'
    async with world.polled():
        await until(lambda: world.status().mismatch == "it serves other, third and not m")
        assert not world.status().view.up
        assert "engine e is down: it serves other, third and not m" in caplog.text
        world.client.pages["/v1/models"] = b'{"data":[{"id":"lora"},{"id":"m"}]}'
        await until(lambda: world.status().view.up)
        await until(lambda: not world.status().mismatch)
        read = world.client.read.count("e/v1/models")
        await world.polls(20)
        assert world.client.read.count("e/v1/models") == read
        world.client.pages["/v1/models"] = b'{"data":[{"id":"other"}]}'
        world.clock.now += 10
        await until(lambda: not world.status().view.up)


@pytest.mark.parametrize("page", [EngineFailed("HTTP 404"), b"garbage", b'{"data": []}', b'{"data": 5}'])
async def test_an_engine_that_does_not_tell_its_models_is_not_blamed_for_it(page: bytes | Exception) -> None:
    world = World(True)
    world.client.pages["/v1/models"] = page
    async with world.polled():
        await world.polls(5)
        assert (world.status().mismatch, world.status().view.up) == ("", True)


async def test_the_embedded_engine_has_no_version_to_ask_for() -> None:
    world = World(True, engines=(Engine("embedded", "http://127.0.0.1:5", "plain", 0),))
    async with world.polled():
        await world.polls(5)
    assert "embedded/version" not in world.client.read


async def test_real_engines_are_read_over_http() -> None:
    fake = FakeEngine(metrics=page(running=3, positions=1), version="0.32.0")
    async with served(fake) as url, EngineClient() as client:
        engine = Engine("e", url, "plain", 0)
        clock = Clock()
        state = State(Fleet.of(config("0.33.0")), [engine], clock, Random(1))
        task = asyncio.create_task(Poller(state, client, clock, Random(1)).run())
        await until(lambda: "0.32.0" in state.snapshot().engines[0].mismatch)
        (status,) = state.snapshot().engines
        assert (status.view.up, status.view.load) == (True, 3)
        assert status.mismatch.startswith("it speculates")
        fake.healthy = False
        await until(lambda: not state.snapshot().engines[0].view.up)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_routes_are_kept_apart_where_that_pays(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway")
    world = World(True, engines=(E, F))
    settings = parse(
        CONFIG.replace("pools: [plain]", "").replace("scrape_s: 0.000001", "scrape_s: 0.01"),
        "routes.yaml",
        Path(),
        {},
    )
    profiles = {}
    for route, curves in CURVES.items():
        points = {
            pool: tuple((n, n / (a + b * n + c * n * n), 0.01) for n in (1, 10, 40, 80, 160, 320))
            for pool, (a, b, c) in zip(("mtp3", "plain"), curves.values(), strict=True)
        }
        profiles[route] = Profile(route=route, pools=points, meta={})
    world.state.configure(Fleet.of(settings.completed(profiles=profiles)), (E, F))
    for name in ("e", "f"):
        world.state.mark(name, up=True)
    leases = [world.lease(route) for _ in range(120) for route in ("text", "table")]
    async with world.polled():
        await until(lambda: "routes are kept apart: {" in caplog.text)
        for lease in leases:
            lease.release()
        await until(lambda: "kept apart no more" in caplog.text)


async def test_the_ledger_gets_what_the_engine_counted() -> None:
    world = World(True, engines=(F,))
    booked: list[tuple[str, Sample]] = []
    world.state.speculation.listen(lambda route, pool, sample: booked.append((route, sample)))
    world.client.pages["/metrics"] = counting(50, 7)
    async with world.polled():
        await world.polls(2)
        lease = world.lease("table")
        lease.request_sent(AnswerKind.WHOLE)
        lease.answer_complete(None, 12)
        lease.release()
        world.client.pages["/metrics"] = counting(60, 8)
        await world.polls(3)
        world.clock.now += 60
        await until(lambda: booked)
    assert booked == [("table", Sample(Source.ENGINE, Speculation(10, 10, 30, (10, 0, 0))))]
    assert world.status("f").speculation == Speculation(10, 10, 30, (10, 0, 0))


async def test_it_ends_though_a_client_takes_the_end_for_a_time_limit() -> None:
    asked = asyncio.Event()

    class Timing(ScriptedClient):
        async def check_health(self, engine: Engine, within_s: float) -> None:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            raise EngineTooSlow("no answer")

    clock = Clock()
    state = State(Fleet.of(config()), (E,), clock, Random(1))
    task = asyncio.create_task(Poller(state, Timing(clock), clock, Random(1)).run())  # type: ignore[arg-type]
    await asked.wait()
    task.cancel()
    async with asyncio.timeout(30):
        with suppress(asyncio.CancelledError):
            await task
