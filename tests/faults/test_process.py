"""What can happen to the process of a gateway, and to those of its engines, while requests run."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import random
import resource
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.clients import Clients
from bench.engines import engine_processes, swap, write_config
from bench.faults import FAULTS
from bench.serving import ROOT, serve, serving
from bench.watch import Watch
from gateway.config import parse
from gateway.server.app import Gateway
from tests import support
from tests.faults.clients import ENDLESS, LONG_S, PATIENT, Stand, chat, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.clients import Tally
    from bench.engines import EngineProcess
    from bench.serving import Served
    from bench.watch import Sample

CLIENTS = 24
FEW = 6


def idle(engine: EngineProcess, sample: Sample) -> bool:
    return not sample.serves(engine.name)


def busy(engine: EngineProcess, sample: Sample) -> bool:
    return sample.requests[engine.name] > 2


async def test_no_request_is_lost_that_had_not_begun(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    with engine_processes(time_scale=4) as engines:
        write_config(path, engines, breaker={"open_s": 1})
        async with serving(path) as served, Watch(served.url, engines) as watch:
            async with Clients([served.url], CLIENTS) as clients:
                for name, engine in zip(("kill", "garbage", "503", "drain"), engines, strict=True):
                    fault = next(fault for fault in FAULTS if fault.name.startswith(name))
                    tally = clients.new_tally()
                    await fault.begin(watch, engine)
                    assert await watch.until(partial(idle, engine), LONG_S)
                    await clients.wait_answered(CLIENTS)
                    await fault.heal(watch, engine)
                    assert await watch.until(partial(busy, engine), LONG_S)
                    assert (tally.failed, tally.cut) == ({}, 0), fault.name
                    assert fault.may_break or tally.error_events == 0, fault.name
            while any(await watch.open()):  # noqa: ASYNC110 - other processes have no event to wait on
                await asyncio.sleep(0.05)
            async with Clients([served.url], CLIENTS) as clients:
                await clients.wait_answered(CLIENTS)
                served.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(served.process.wait, LONG_S) == 0
            assert (clients.tally.failed, clients.tally.cut, clients.tally.error_events) == ({}, 0, 0)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[EngineProcess]]:
    with engine_processes((3, 0), time_scale=20) as engines:
        yield engines


@contextlib.contextmanager
def standing(
    folder: Path, engines: list[EngineProcess], log: int | None = None, **sections: Any
) -> Iterator[Stand]:
    """Serve those engines; the log goes to a file of the folder unless told otherwise."""
    write_config(folder / "routes.yaml", engines, routes=PATIENT, **sections)
    with (folder / "log").open("wb") as file, serve(folder / "routes.yaml", log or file.fileno()) as served:
        yield Stand(served, engines, folder / "log")


async def becomes(condition: Callable[[], object]) -> None:
    """Wait until something is true of another process."""
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110 - it has no event to wait on
            await asyncio.sleep(0.05)


async def stops(stand: Stand) -> None:
    """It still ends as it should: with a work-free exit of 0."""
    stand.served.process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(stand.served.process.wait, LONG_S) == 0


@pytest.mark.faults
@pytest.mark.parametrize("log", ["full disk", "pipe that nobody reads", "pipe without an end"])
async def test_it_serves_on_and_stops_though_its_log_goes_to_a(
    log: str, engines: list[EngineProcess], tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    if log == "full disk":
        os.close(writing)
        writing = os.open("/dev/full", os.O_WRONLY)
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 4096)
    with standing(tmp_path, engines, writing) as stand:
        os.close(writing)
        if log == "pipe without an end":
            os.close(reading)
        async with stand.beside_good_clients() as clients:
            await clients.wait_answered(10 * FEW)  # whose lines are more than the pipe holds
        assert log == "pipe that nobody reads" or stand.metrics()["log_lines_lost_total"] > FEW
        await stops(stand)
    if log != "pipe without an end":
        os.close(reading)


async def answered(stand: Stand) -> int:
    """Ask once, on a connection of its own; return the status, 0 where there was no answer."""
    async with stand.target.peers(1) as (peer,):
        await peer.send(chat())
        return status(await peer.answer())


@pytest.mark.faults
async def test_descriptors_that_run_out_refuse_some_and_are_used_again(
    engines: list[EngineProcess], tmp_path: Path
) -> None:
    with standing(tmp_path, engines, limits={"connections": 10_000, "keep_alive_s": 60}) as stand:
        pid = stand.served.process.pid
        async with stand.beside_good_clients() as clients:
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (stand.descriptors() + 20, limits[1]))
            async with stand.target.peers(100):
                cpu, began = stand.cpu_s(), time.monotonic()
                await clients.wait_answered(10 * FEW)
                # One that spins on accept takes all the time there is.
                assert stand.cpu_s() - cpu < 0.9 * (time.monotonic() - began)
                assert stand.served.process.poll() is None
            # Once it has seen that all of the others are gone, there is room with no more descriptors.
            async with asyncio.timeout(LONG_S):
                while await answered(stand) != 200:  # noqa: ASYNC110 - another process has no event
                    await asyncio.sleep(0.05)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def flap(path: Path, number: int, good: str) -> None:
    """Put something else in the configuration's place."""
    kind = number % 8
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    if kind == 0:
        swap(path, good[: len(good) // 2])  # half of it is no valid YAML, or lacks routes
    elif kind == 1:
        path.unlink(missing_ok=True)
    elif kind == 2:
        path.unlink(missing_ok=True)
        path.mkdir()
    elif kind == 3:
        os.mkfifo(path)
    elif kind == 4:
        path.unlink()
        path.symlink_to(path)  # a link to itself: unreadable even for root
    elif kind == 5:
        swap(path, "\0" * 100)
    elif kind == 6:
        path.unlink()
        path.symlink_to("/dev/zero")
    else:
        swap(path, good)


async def test_a_configuration_that_flaps_and_a_storm_of_signals_change_nothing(
    engines: list[EngineProcess], tmp_path: Path
) -> None:
    with standing(tmp_path, engines) as stand:
        path, process = tmp_path / "routes.yaml", stand.served.process
        good = path.read_text()
        async with stand.beside_good_clients() as clients:
            for number in range(80):
                flap(path, number, good)
                process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.01)
            for kind in range(7):
                before = stand.metrics()["config_reload_failures_total"]
                flap(path, kind, good)
                process.send_signal(signal.SIGHUP)
                await becomes(lambda: stand.metrics()["config_reload_failures_total"] > before)  # noqa: B023
            taken = stand.metrics()["config_reloads_total"]
            swap(path, good.replace("replicas: 1", "replicas: 3"))
            await becomes(lambda: stand.metrics()["config_reloads_total"] > taken)
            await clients.wait_answered(FEW)
        log = stand.log()
        assert "not a regular file" in log
        assert "Traceback" not in log


@pytest.mark.faults
async def test_keys_that_flap_keep_nobody_out_who_had_one(
    engines: list[EngineProcess], tmp_path: Path
) -> None:
    path, old, new = tmp_path / "keys", "sk-0123456789abcdef", "sk-fedcba9876543210"
    swap(path, f"one {old}\n")
    with standing(tmp_path, engines, auth={"keys_file": "keys"}) as stand:
        process, url = stand.served.process, stand.served.url
        async with Clients([url], FEW, keys=[old]) as clients:
            for number in range(160):
                flap(path, number, f"one {old}\n")
                process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.01)
            for kind in range(7):
                before = stand.log().count("is not taken over")
                flap(path, kind, f"one {old}\n")
                process.send_signal(signal.SIGHUP)
                if kind:  # half of such a file is a valid one
                    await becomes(lambda: stand.log().count("is not taken over") > before)  # noqa: B023
            await clients.wait_answered(2 * FEW)
        tally = clients.tally
        assert (tally.failed, tally.cut, tally.error_events) == ({}, 0, 0)
        flap(path, 0, "")
        swap(path, f"one {new}\n")
        async with Clients([url], 1, keys=[new]) as clients:
            await asyncio.wait_for(clients.wait_answered(1), LONG_S)
        assert await answered(stand) == 401
        assert old not in stand.log()
        assert new not in stand.log()


@pytest.mark.faults
async def test_a_killed_gateway_is_served_again_on_the_same_port_at_once(
    engines: list[EngineProcess], tmp_path: Path
) -> None:
    with standing(tmp_path, engines) as stand:
        async with Clients([stand.served.url], FEW) as clients, stand.target.peers(20) as peers:
            await clients.wait_answered(FEW)
            for peer in peers:
                await peer.send(chat(stream=True, max_tokens=ENDLESS, ignore_eos=True))
            stand.served.process.kill()
            await asyncio.to_thread(stand.served.process.wait)
            again = await asyncio.create_subprocess_exec(
                *map(str, cast("list[str]", stand.served.process.args)),
                cwd=ROOT,
                stderr=asyncio.subprocess.DEVNULL,
            )
            clients.new_tally()
            await clients.wait_answered(FEW)
        await stand.at_rest()  # the engines have dropped what the killed one had begun
        again.terminate()
        assert await again.wait() == 0


@pytest.mark.faults
@pytest.mark.parametrize("while_", ["descriptors", "stopped", "configuration"])
async def test_it_stops_in_the_middle_of_any_of_this(
    while_: str, engines: list[EngineProcess], tmp_path: Path
) -> None:
    with standing(tmp_path, engines) as stand:
        pid, path = stand.served.process.pid, tmp_path / "routes.yaml"
        async with stand.target.peers(50) as peers, Clients([stand.served.url], FEW) as clients:
            await clients.wait_answered(FEW)
            if while_ == "descriptors":
                soft = stand.descriptors() - 10
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, soft))
            elif while_ == "stopped":
                stand.served.process.send_signal(signal.SIGSTOP)
                for peer in peers:
                    await peer.send(b"GET /health HTTP/1.1\r\n")
                stand.served.process.send_signal(signal.SIGCONT)
            else:
                flap(path, 1, "")
                os.mkfifo(path)
                stand.served.process.send_signal(signal.SIGHUP)
            stand.served.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(stand.served.process.wait, LONG_S) == 0
            clients.end()


async def test_steps_of_the_wall_clock_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is monotonic is measured by; the wall clock dates log lines, and the model's start."""
    wall, rng = time.time, random.Random(0)
    monkeypatch.setattr(time, "time", lambda: wall() + rng.uniform(-1e8, 1e8))
    config = "model: m\npools: {p: {engines: [URL]}}\nroutes: {text: {timeouts: {total_s: 60}}}"
    async with support.served(support.FakeEngine()) as url:
        gateway = Gateway(parse(config.replace("URL", url), "routes.yaml", Path(), {}))
        async with support.serving(gateway) as at:
            await support.until(lambda: all(one.view.up for one in gateway.state.snapshot().engines))
            async with Clients([at], 2) as clients:
                await clients.wait_answered(20)
            tally = clients.tally
            assert (tally.failed, tally.cut, tally.error_events) == ({}, 0, 0)
            assert gateway.state.snapshot().routes["text"].in_flight == 0
            assert all(
                one.reading_age_s is None or one.reading_age_s >= 0
                for one in gateway.state.snapshot().engines
            )


LIES: dict[str, Callable[[int], frozenset[str]]] = {
    "nobody": lambda turn: frozenset({"127.0.0.1", "127.66.6.1", "127.66.6.2"}),
    "other nobodies at each answer": lambda turn: frozenset(
        {"127.0.0.1", *(f"127.66.{turn % 256}.{n}" for n in range(1, 20))}
    ),
    "thousands": lambda turn: frozenset(
        {"127.0.0.1", *(f"127.{n >> 8}.{n & 255}.7" for n in range(turn % 2 * 3000))}
    ),
    "nothing at times": lambda turn: frozenset({"127.0.0.1"} if turn % 3 == 0 else ()),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_resolver_that_lies_costs_no_request_and_leaves_nothing_behind(
    lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = itertools.count()

    async def resolve(host: str, port: int) -> frozenset[str]:
        turn = next(turns)
        if turn and turn % 7 == 0:
            raise OSError(-2, "Name or service not known")
        await asyncio.sleep(0.2 if turn % 11 == 10 else 0)
        return LIES[lie](turn)

    monkeypatch.setattr("gateway.upstream.discovery.addresses_of", resolve)
    config = (
        "model: m\nroutes: {text: {timeouts: {connect_s: 0.5}}}\npolling: {resolve_s: 0.01, scrape_s: 0.2}\n"
        "breaker: {failures: 1000000}\npools: {p: {engines: ['dns+URL']}}"
    )
    async with support.served(support.FakeEngine()) as url:
        gateway = Gateway(parse(config.replace("URL", url), "routes.yaml", Path(), {}))
        async with support.serving(gateway) as at:
            await support.until(lambda: gateway.state.is_up("text"))
            async with Clients([at], 2) as clients:
                await clients.wait_answered(5)
                first = next(turns)
                await support.until(lambda: next(turns) > first + 300, LONG_S)
                await clients.wait_answered(5)
            tally = clients.tally
            assert (tally.failed, tally.cut, tally.error_events) == ({}, 0, 0)
            assert len(gateway.state.snapshot().engines) < 100
            assert len(asyncio.all_tasks()) < 200


@pytest.mark.faults
async def test_engines_that_are_killed_stopped_and_continued_again_and_again_lose_nothing(
    tmp_path: Path,
) -> None:
    with engine_processes((3, 3, 0, 0), time_scale=4) as engines:
        write_config(tmp_path / "routes.yaml", engines)
        async with serving(tmp_path / "routes.yaml") as served, Watch(served.url, engines) as watch:
            async with Clients([served.url], CLIENTS) as clients:
                for engine, name in zip(engines * 2, ("hang", "kill", "hang", "kill") * 2, strict=True):
                    fault = next(fault for fault in FAULTS if fault.name.startswith(name))
                    await fault.begin(watch, engine)
                    gone = await watch.until(partial(idle, engine), LONG_S)
                    assert gone, fault.name
                    await fault.heal(watch, engine)
                    back = await watch.until(partial(busy, engine), LONG_S)
                    assert back, fault.name
                    # A request has one retry: what this fault sent elsewhere must have ended before the next.
                    enough = clients.tally.answered + 4 * CLIENTS
                    assert await watch.until(partial(has_answered, clients.tally, enough), LONG_S)
            assert (clients.tally.failed, clients.tally.cut) == ({}, 0)
            while any(await watch.open()):  # noqa: ASYNC110 - other processes have no event to wait on
                await asyncio.sleep(0.05)


@pytest.mark.faults
async def test_the_embedded_engine_comes_back_and_goes_with_its_gateway(tmp_path: Path) -> None:
    async with serving(ROOT / "routes.yaml") as served:
        pid = served.engine_pid()
        for number in (signal.SIGKILL, signal.SIGSTOP):
            os.kill(pid, number)
            await asyncio.to_thread(ended, pid)
            pid = await asyncio.to_thread(another, served, pid)
            await asyncio.to_thread(served.wait_ready)
        served.process.kill()
        await asyncio.to_thread(ended, pid)


def has_answered(tally: Tally, count: int, _: Sample) -> bool:
    return tally.answered >= count


def another(served: Served, pid: int) -> int:
    """Return the process id of the embedded engine that takes another one's place."""
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        with contextlib.suppress(ValueError, OSError):  # there is none yet
            if (found := served.engine_pid()) != pid:
                return found
        time.sleep(0.05)
    raise AssertionError("it does not come back")


def ended(pid: int) -> None:
    """Wait until a process is gone, or is only waited for by its parent."""
    end = time.monotonic() + LONG_S
    with contextlib.suppress(FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < end
            time.sleep(0.05)
