"""What is measured: bodies, how many at once, and how the engine answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENTS, GAP_MS = 64, 5
HELD = 256
_PACED_MS = 100


@dataclass(frozen=True, slots=True)
class Case:
    """One load.

    Attributes:
        size: of the bodies, one of `bodies.SIZES`.
        connections: clients, each with one request at a time.
        events: of each answer, which is streamed; 0: whole.
        engine: settings of the engine (stub.c).
        spread_ms: within which the clients begin.
        kind: `most` (as many requests as go through), `paced` (far fewer), `stream`, or `held` (the engine
            answers nobody until all requests have arrived).
    """

    size: str
    connections: int
    events: int = 0
    engine: Mapping[str, int] = field(default_factory=dict)
    spread_ms: int = 0
    kind: str = "most"

    @property
    def name(self) -> str:
        """Its name in results and on the command line."""
        more = "" if self.kind == "most" else f" {self.kind}"
        return f"{self.size}{more} x {self.connections}"


def _most(size: str) -> list[Case]:
    return [Case(size, connections) for connections in (1, 32, 256)]


def _paced(size: str, connections: int) -> Case:
    engine = {"delay": _PACED_MS, "jitter": _PACED_MS // 2}
    return Case(size, connections, engine=engine, spread_ms=_PACED_MS, kind="paced")


def _stream(connections: int) -> Case:
    engine = {"events": EVENTS, "gap": GAP_MS}
    spread_ms = EVENTS * GAP_MS
    return Case("200 kB", connections, EVENTS, engine, spread_ms=spread_ms, kind="stream")


CASES = {
    case.name: case
    for case in (
        # Larger bodies come later: what an allocator keeps of them would count in the others' memory.
        *_most("1 kB"),
        *_most("200 kB"),
        _paced("200 kB", 32),
        _stream(32),
        _stream(256),
        *_most("1.5 MB"),
        Case("1.5 MB", HELD, engine={"hold": HELD}, kind="held"),
        *_most("8 MB"),
    )
}
QUICK = ("1 kB x 32", "200 kB x 32", "200 kB stream x 32")


def chosen(words: str) -> list[Case]:
    """Return the cases with one of these words, separated by commas, in their names: `200 kB,stream`.

    Raises:
        ValueError: a word is in none.
    """
    wanted = [word.strip() for word in words.split(",")]
    for word in wanted:
        if not any(word in name for name in CASES):
            raise ValueError(f"no case has {word!r} in its name: {', '.join(CASES)}")
    return [case for name, case in CASES.items() if any(word in name for word in wanted)]
