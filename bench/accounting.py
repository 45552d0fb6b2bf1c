"""`python -m bench.accounting`: what accounting for acceptance costs, per request and per streamed chunk.

In microseconds of CPU time, beside the same work without accounting, turn by turn in one run.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import time
from collections import deque
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.config import parse
from gateway.engines.vllm_json import speculative_object
from gateway.model import Engine, Reading, Speculation, SpeculationFault
from gateway.policy.account.acceptance import of_answer
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.ledger import AnswerKind, SpeculationLedger
from gateway.state.store import State
from gateway.telemetry.metrics import Metrics
from gateway.wire.openai.completion import StreamChunk, read_chunk
from gateway.wire.vllm.engine import read_speculation

if TYPE_CHECKING:
    from collections.abc import Callable

IN_FLIGHT = 256
# An answer takes 20 s, and the engine is read every second.
WINDOWS = 20
TURNS, CALLS = 200, 500

CONFIG = """
model: m
pools: {mtp3: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://e:1]}}
routes: {text: {}, key-value: {}, table: {}}
"""
ROUTES = ("text", "key-value", "table")
REPORTED = json.dumps({"speculative_decoding": speculative_object([20, 26, 26, 38], 330)}).encode()
CHUNK = json.dumps(
    {
        "id": "chatcmpl-83003e94ccb35ad6",
        "object": "chat.completion.chunk",
        "created": 1795952765,
        "model": "glm-ocr",
        "choices": [
            {
                "index": 0,
                "delta": {"content": " | 3.50 |"},
                "logprobs": None,
                "finish_reason": None,
                "token_ids": None,
            }
        ],
    },
    separators=(",", ":"),
).encode()


class _BareDelta(msgspec.Struct):
    content: str | None = None


class _BareChoice(msgspec.Struct):
    delta: _BareDelta


class _BareChunk(msgspec.Struct):
    choices: list[_BareChoice]
    usage: dict[str, int] | None = None


_BARE = msgspec.json.Decoder(_BareChunk)


def side_by_side(
    with_it: Callable[[], object], without: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Return microseconds per call of each, measured by turns."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(TURNS):
        for function, samples in zip((with_it, without), found, strict=True):
            start = time.thread_time_ns()
            for _ in range(CALLS):
                function()
            samples.append((time.thread_time_ns() - start) / 1e3 / CALLS)
    return found


def report(name: str, bound_us: float, samples: tuple[list[float], list[float]]) -> None:
    """Print what accounting adds, in the median turn and in the least disturbed one."""
    with_it, without = map(statistics.median, samples)
    best = min(samples[0]) - min(samples[1])
    print(
        f"  {name}: {with_it - without:.2f} us, at best {best:.2f} us "
        f"({with_it:.2f} with accounting, {without:.2f} without; bound {bound_us:g} us)"
    )


def chunks() -> tuple[list[float], list[float]]:
    """Read a stream's chunk for its text alone, and count its step, too."""
    lease = Account(reported=False).take("text")

    def counted() -> None:
        chunk = read_chunk(CHUNK)
        if chunk.is_step:
            lease.count_step()
        if chunk.is_uncountable:
            lease.mark_uncountable()

    def bare() -> StreamChunk:
        chunk = _BARE.decode(CHUNK)
        return StreamChunk(is_chunk=True, has_output=any(choice.delta.content for choice in chunk.choices))

    return side_by_side(counted, bare)


class Account:
    """A gateway's account of one engine with many requests in flight.

    `reported`: whether the engine's answers have speculation figures of their own.
    """

    def __init__(self, *, reported: bool) -> None:
        fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
        self._state = State(fleet, [Engine("e:1", "http://e:1", "mtp3", 3)], time.monotonic, random.Random(1))
        self._state.mark("e:1", up=True)
        Metrics(self._state)
        self._reported = reported
        self._rng = random.Random(1)
        rejected: list[SpeculationFault] = []
        book = self._state.speculation.book
        self._ledger = SpeculationLedger("mtp3", book, rejected.append)
        self._ends = self._drafts = 0
        self._read()
        self._running = deque(
            self._ledger.request_sent(self._rng.choice(ROUTES), AnswerKind.STREAM) for _ in range(IN_FLIGHT)
        )

    def take(self, route: str) -> Lease:
        """Return a lease of the engine, sent for a stream."""
        lease = self._state.take(route)
        assert isinstance(lease, Lease)
        lease.request_sent(AnswerKind.STREAM)
        return lease

    def one(self) -> None:
        """Account for one request's end and another's beginning, and for its share of the readings."""
        figures = read_speculation(REPORTED) if self._reported else None
        sample = of_answer(figures, completion_tokens=301, steps=111, depth=3)
        self._ledger.request_ended(self._running.popleft(), sample, complete=True)
        self._running.append(self._ledger.request_sent(self._rng.choice(ROUTES), AnswerKind.STREAM))
        self._ends += 1
        self._drafts += 110
        self._ledger.chunks += 110  # `stepped` is measured with the chunk
        if self._ends % (IN_FLIGHT // WINDOWS) == 0:
            self._read()

    def nothing(self) -> None:
        """Do what the measurement itself does."""
        self._rng.choice(ROUTES)

    def _read(self) -> None:
        counted = Speculation(self._drafts, self._drafts, 3 * self._drafts, (self._drafts, 0, 0))
        at = self._ends / (IN_FLIGHT / WINDOWS)
        self._ledger.record_reading(
            Reading(
                at,
                IN_FLIGHT,
                IN_FLIGHT,
                finished=self._ends,
                chunks=self._ledger.chunks,
                speculation={"0": counted},
            )
        )


def main() -> None:
    """Measure and print."""
    print(
        f"Accounting, CPU time: {platform.machine()} {platform.system()}, "
        f"Python {platform.python_version()}, msgspec {msgspec.__version__}, "
        f"prometheus-client {version('prometheus-client')}, "
        f"{TURNS} turns of {CALLS} calls; {IN_FLIGHT} requests in flight over {WINDOWS} readings"
    )
    report("a streamed chunk", 2, chunks())
    for name, reported in (("a request with the engine's figures", True), ("an estimated stream", False)):
        account = Account(reported=reported)
        report(name, 20, side_by_side(account.one, account.nothing))


if __name__ == "__main__":
    main()
