"""Sends many seeded requests, counts the answers and keeps the requests that had wrong ones."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fuzz.documented import Client, run_random, systematic
from tests.fuzz.exchange import WrongAnswer, check, exchange
from tests.fuzz.mutations import KINDS
from tests.fuzz.seeds import seeds
from tests.fuzz.target import IMAGE_PORT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemathesis import Case

    from tests.fuzz.documented import Sent
    from tests.fuzz.target import Target

OUT = Path(__file__).parent / "out"
_AT_ONCE = 16


@dataclass
class Tally:
    """Answers by status (0: closed without one), the slowest, and what was wrong."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    problems: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return sum(self.statuses.values()) + len(self.problems)

    def count(self, status: int, seconds: float, name: str) -> None:
        self.statuses[status] += 1
        self.slowest = max(self.slowest, (seconds, name))

    def fail(self, name: str, raw: bytes, error: WrongAnswer) -> None:
        """Keep a request, for `python -m tests.fuzz.long --replay FILE`."""
        OUT.mkdir(exist_ok=True)
        path = OUT / f"{name.replace(':', '-')}.http"
        path.write_bytes(raw)
        self.problems.append(f"{name} ({path}): {error}")


def mutation(number: int, kind: str, index: int) -> bytes:
    """Return the request with this name; always the same one."""
    rng = random.Random(f"{number}:{kind}:{index}")
    return KINDS[kind](rng, rng.choice(seeds()))


async def replay(target: Target, requests: Iterable[tuple[str, bytes]], tally: Tally) -> None:
    """Send requests, some at a time, each on a connection of its own."""
    left = iter(requests)

    async def client() -> None:
        for name, raw in left:
            raw = raw.replace(b":%d/" % IMAGE_PORT, b":%05d/" % target.image_port)
            try:
                answer = await exchange(target.port, raw)
                if answer:
                    check(answer, head=raw.startswith(b"HEAD "))
            except WrongAnswer as error:
                tally.fail(name, raw, error)
            else:
                tally.count(answer.status if answer else 0, answer.seconds if answer else 0.0, name)

    await asyncio.gather(*(client() for _ in range(_AT_ONCE)))


def send_mutations(target: Target, number: int, counts: dict[str, int], tally: Tally) -> None:
    """Send this many mutations of each kind."""
    for kind, count in counts.items():
        named = ((f"{number}:{kind}:{index}", mutation(number, kind, index)) for index in range(count))
        asyncio.run(replay(target, named, tally))


def send_documented(target: Target, number: int, random_cases: int, tally: Tally, *, every: int = 1) -> None:
    """Send what the document allows and forbids: every n-th of its edge cases, then random cases."""
    client = Client(target.url)
    document = client.document()
    last: list[Sent] = []

    def send(case: Case[Any]) -> None:
        name = f"{number}:document:{tally.sent}"
        last.clear()
        try:
            client.send(case, last.append)
        except WrongAnswer as error:
            tally.fail(name, last[0].raw if last else b"", error)
        else:
            tally.count(last[0].answer.status, last[0].answer.seconds, f"{name} {case.operation.label}")

    for case in itertools.islice(systematic(document), 0, None, every):
        send(case)
    if random_cases:
        run_random(document, random_cases, number, send)
