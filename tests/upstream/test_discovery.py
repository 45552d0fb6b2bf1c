import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from gateway.config import Config, parse
from gateway.model import Engine
from gateway.upstream.discovery import Discovery, addresses_of
from tests.support import until


def config(**pools: str) -> Config:
    """A configuration with these engines by pool, written as in the file."""
    lines = ["model: m", "routes: {text: {}}", "polling: {resolve_s: 0.000001}", "pools:"]
    lines += [f"  {name}: {{engines: [{engines}], api_key: k-{name}}}" for name, engines in pools.items()]
    return parse("\n".join(lines), "routes.yaml", Path(), {})


class Resolver:
    """Answers as its table says: addresses, an error, or never (None)."""

    def __init__(self, **table: str | Exception | None) -> None:
        self.table = table
        self.asked: list[tuple[str, int]] = []
        self.at_once: dict[str, int] = {}
        self.most_at_once = 0

    async def __call__(self, host: str, port: int) -> frozenset[str]:
        self.asked.append((host, port))
        self.at_once[host] = self.at_once.get(host, 0) + 1
        self.most_at_once = max(self.most_at_once, *self.at_once.values())
        try:
            answer = self.table[host]
            if answer is None:
                await asyncio.Event().wait()
            if isinstance(answer, Exception):
                raise answer
            return frozenset(str(answer).split())
        finally:
            self.at_once[host] -= 1

    async def answers(self, host: str, times: int = 1) -> None:
        """Wait until a name has been asked for so many times more."""
        before = len([name for name, _ in self.asked if name == host])
        await until(lambda: len([name for name, _ in self.asked if name == host]) >= before + times)


class Changes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@asynccontextmanager
async def running(
    resolver: Resolver, settings: Config, changes: Changes | None = None
) -> AsyncIterator[Discovery]:
    discovery = Discovery(settings, changes or Changes(), Random(1), resolver, patience_s=0.001)
    task = asyncio.create_task(discovery.run())
    try:
        yield discovery
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def urls(discovery: Discovery) -> list[str]:
    return [engine.url for engine in discovery.engines()]


async def test_engines_by_url_are_known_without_a_resolver() -> None:
    discovery = Discovery(
        config(a="http://x:8000, https://y", b="embedded"), Changes(), Random(1), Resolver()
    )
    assert discovery.engines("http://127.0.0.1:5") == (
        Engine("x:8000", "http://x:8000", "a", 0, "k-a"),
        Engine("y:443", "https://y", "a", 0, "k-a"),
        Engine("embedded", "http://127.0.0.1:5", "b", 0),
    )
    assert len(discovery.engines()) == 2


async def test_engines_behind_one_address_and_several_prefixes_are_several() -> None:
    resolver = Resolver(deep="10.0.0.1")
    settings = config(a="http://x:8000/one, http://x:8000/two, http://x:8000", b="dns+http://deep:8000/ocr")
    async with running(resolver, settings) as discovery:
        await until(lambda: len(discovery.engines()) == 4)
        assert [(engine.name, engine.url) for engine in discovery.engines()] == [
            ("x:8000/one", "http://x:8000/one"),
            ("x:8000/two", "http://x:8000/two"),
            ("x:8000", "http://x:8000"),
            ("10.0.0.1:8000/ocr", "http://10.0.0.1:8000/ocr"),
        ]
    assert set(resolver.asked) == {("deep", 8000)}


async def test_engines_have_their_pools_authorities() -> None:
    settings = config(a="https://x", b="https://y")
    settings = settings.completed(profiles={}, authorities={"b": "PEM"})
    discovery = Discovery(settings, Changes(), Random(1), Resolver())
    assert [engine.authorities for engine in discovery.engines()] == ["", "PEM"]
    assert "PEM" not in repr(discovery.engines())


async def test_names_without_an_address_are_told_with_the_reason() -> None:
    resolver = Resolver(deep="", plain="10.0.0.1")
    changes = Changes()
    async with running(
        resolver, config(a="dns+http://deep:8000", b="dns+http://plain"), changes
    ) as discovery:
        await until(lambda: discovery.unresolved() and discovery.engines())
        (told,) = discovery.unresolved().pop("a")
        assert told.startswith("deep:8000: ")
        assert changes.count  # by which the state hears of it
        resolver.table["deep"] = "10.0.0.2"
        await until(lambda: not discovery.unresolved())


async def test_every_address_of_a_name_is_an_engine() -> None:
    resolver = Resolver(deep="10.0.0.2 10.0.0.1", plain="fd00::1")
    changes = Changes()
    settings = config(a="dns+http://deep:8000", b="dns+https://plain")
    async with running(resolver, settings, changes) as discovery:
        await until(lambda: len(discovery.engines()) == 3)
        assert discovery.engines() == (
            Engine("10.0.0.1:8000", "http://10.0.0.1:8000", "a", 0, "k-a"),
            Engine("10.0.0.2:8000", "http://10.0.0.2:8000", "a", 0, "k-a"),
            Engine("[fd00::1]:443", "https://[fd00::1]:443", "b", 0, "k-b"),
        )
        assert discovery.engines_of("dns+http://deep:8000") == (
            "http://10.0.0.1:8000",
            "http://10.0.0.2:8000",
        )
        await resolver.answers("deep", 3)
    assert changes.count == 2
    assert set(resolver.asked) == {("deep", 8000), ("plain", 443)}


async def test_engines_come_and_go_with_the_names_addresses() -> None:
    resolver = Resolver(deep="10.0.0.1 10.0.0.2")
    async with running(resolver, config(a="dns+http://deep:80")) as discovery:
        await until(lambda: len(urls(discovery)) == 2)
        resolver.table["deep"] = "10.0.0.2 10.0.0.3"
        await until(lambda: urls(discovery) == ["http://10.0.0.2:80", "http://10.0.0.3:80"])


@pytest.mark.parametrize("failure", [OSError("no such name"), UnicodeError("bad label"), "", None])
async def test_a_resolver_that_fails_costs_no_engine_and_is_told_once(
    failure: Exception | str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    resolver = Resolver(deep="10.0.0.1", other="10.0.0.9")
    settings = config(a="dns+http://deep:80", b="dns+http://other:80")
    async with running(resolver, settings) as discovery:
        await until(lambda: len(urls(discovery)) == 2)
        resolver.table["deep"] = failure
        await until(lambda: "deep:80 cannot be resolved" in caplog.text)
        # The other name is still asked for, and the log says nothing more.
        await resolver.answers("other", 5)
        assert len(urls(discovery)) == 2
        assert len(caplog.records) == 1
        assert resolver.most_at_once == 1


async def test_a_resolver_that_works_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    resolver = Resolver(deep=OSError("try again"))
    async with running(resolver, config(a="dns+http://deep:80")) as discovery:
        await until(lambda: caplog.records)
        resolver.table["deep"] = "10.0.0.1"
        await until(lambda: urls(discovery))
    assert [record.getMessage() for record in caplog.records] == [
        "deep:80 cannot be resolved: try again; check the name's spelling and the DNS server of this machine",
        "deep:80 can be resolved again",
    ]


async def test_an_answer_that_comes_late_counts() -> None:
    free = asyncio.Event()
    asked = 0

    async def slow(host: str, port: int) -> frozenset[str]:
        nonlocal asked
        asked += 1
        await free.wait()
        return frozenset({"10.0.0.1"})

    discovery = Discovery(config(a="dns+http://deep:80"), Changes(), Random(1), slow, patience_s=0.001)
    task = asyncio.create_task(discovery.run())
    await until(lambda: discovery._names["dns+http://deep:80"].failing)
    assert asked == 1
    free.set()
    await until(lambda: urls(discovery) == ["http://10.0.0.1:80"])
    task.cancel()


async def test_a_resolver_that_yields_thousands_of_addresses_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    resolver = Resolver(deep="10.0.0.1")
    async with running(resolver, config(a="dns+http://deep:80")) as discovery:
        await until(lambda: discovery.engines())
        resolver.table["deep"] = " ".join(f"10.1.{n >> 8}.{n & 255}" for n in range(5000))
        await resolver.answers("deep", 5)
        assert urls(discovery) == ["http://10.0.0.1:80"]
        resolver.table["deep"] = " ".join(f"10.1.{n >> 8}.{n & 255}" for n in range(1024))
        await until(lambda: len(urls(discovery)) == 1024)
    assert "deep:80 cannot be resolved: 5,000 addresses, over 1,024" in caplog.text


async def test_a_reload_keeps_the_addresses_of_names_that_stay_and_asks_for_new_ones() -> None:
    resolver = Resolver(deep="10.0.0.1", plain="10.0.0.2", new="10.0.0.3")
    async with running(resolver, config(a="dns+http://deep:80", b="dns+http://plain:80")) as discovery:
        await until(lambda: len(urls(discovery)) == 2)
        discovery.watch(config(z="dns+http://deep:80", y="dns+http://new:80"))
        assert [(engine.url, engine.pool) for engine in discovery.engines()] == [("http://10.0.0.1:80", "z")]
        await until(lambda: len(urls(discovery)) == 2)
        asked = len([host for host, _ in resolver.asked if host == "plain"])
        await resolver.answers("new", 5)
        assert len([host for host, _ in resolver.asked if host == "plain"]) == asked
        assert urls(discovery) == ["http://10.0.0.1:80", "http://10.0.0.3:80"]


async def test_a_reload_while_a_resolver_hangs_leaves_no_question_behind() -> None:
    resolver = Resolver(deep=None, new="10.0.0.3")
    async with running(resolver, config(a="dns+http://deep:80")) as discovery:
        await until(lambda: resolver.at_once.get("deep") == 1)
        discovery.watch(config(a="dns+http://new:80"))
        await until(lambda: urls(discovery) == ["http://10.0.0.3:80"])
        await until(lambda: resolver.at_once["deep"] == 0)


async def test_an_address_that_two_pools_name_belongs_to_the_first_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    resolver = Resolver(deep="10.0.0.1", plain="10.0.0.1")
    settings = config(a="http://10.0.0.1", b="dns+http://deep:80, dns+http://plain:80")
    async with running(resolver, settings) as discovery:
        await until(
            lambda: discovery.engines_of("dns+http://deep:80") and discovery.engines_of("dns+http://plain:80")
        )
        for _ in range(3):
            assert [(engine.name, engine.pool) for engine in discovery.engines()] == [("10.0.0.1:80", "a")]
    assert [record.getMessage() for record in caplog.records] == [
        "dns+http://deep:80 yields http://10.0.0.1:80, which is an engine already; it is counted once",
        "dns+http://plain:80 yields http://10.0.0.1:80, which is an engine already; it is counted once",
    ]


@pytest.mark.parametrize(
    ("found", "addresses"),
    [
        (["10.0.0.1", "fd00::1", "10.0.0.2"], {"10.0.0.1", "10.0.0.2"}),
        (["fd00::1"], {"fd00::1"}),
        ([], set()),
    ],
)
async def test_an_engine_with_two_families_of_addresses_is_one_engine(
    found: list[str], addresses: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(families[":" in address], socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await addresses_of("deep", 80) == addresses


async def test_the_systems_resolver_is_asked() -> None:
    assert await addresses_of("localhost", 80) <= {"127.0.0.1", "::1"}


async def test_pools_are_pending_until_their_names_are_answered_for(caplog: pytest.LogCaptureFixture) -> None:
    resolver = Resolver(deep="10.0.0.1")
    settings = config(a="dns+http://deep:80", b="http://x:80", c="dns+http://nowhere:80")
    changes = Changes()
    discovery = Discovery(settings, changes, Random(1), resolver)
    assert discovery.pending() == {"a", "c"}
    async with running(resolver, settings) as discovery:
        await until(lambda: not discovery.pending())
        assert discovery.engines_of("dns+http://deep:80")
    assert "nowhere" in caplog.text
