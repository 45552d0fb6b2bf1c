"""`python -m deploy.stack.load`: clients of the local stack in a closed loop, more and fewer of them in turn.

Most ask as OCR clients do, for text, tables and values; one asks in every other way, and for what is refused.
What answers is simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
from typing import TYPE_CHECKING

import httpx

from gateway.tools.demo.demo_load import Request, chat, clients, page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.tools.demo.demo_load import Clients

# Clients take these in turn. Values are read out by programs, which do not stream. All else is streamed, so
# that an engine that tells nothing can be held against its counters.
WORK = (
    ("Text Recognition:", True),
    ("Table Recognition:", True),
    ("Text Recognition:", True),
    ("Table Recognition:", True),
    ("Output the value of total", False),
)
TROUBLE_S = 10
_REPORT_S = 10.0
_SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}, "date": {"type": "string"}}}


def usual(max_tokens: int) -> list[Request]:
    """Return what most clients send."""
    blank = page()
    return [Request(chat(prompt, blank, stream=stream, max_tokens=max_tokens)) for prompt, stream in WORK]


def unusual(model: str) -> list[Request]:
    """Return every other way to be sorted, with short answers, and requests that fail each in its own way."""
    blank, limit = page(), {"max_tokens": 16, "stream": True}
    schema = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": _SCHEMA}}
    return [
        Request(chat("read this", blank, **limit), {"x-ocr-route": "table"}),
        Request(chat("read this", blank, model=f"{model}:text", **limit)),
        Request(chat("read this", blank, metadata={"ocr_route": "key-value"}, **limit)),
        Request(chat("read this", blank, response_format=schema, **limit)),
        Request(chat(None, page(ruled=True), **limit)),
        Request(chat("hello", None, **limit)),
        Request(chat("Table Recognition:", blank, stream=True), leaves_s=0.2),
        Request(chat("read this", blank, **limit), {"x-ocr-route": "no-such-route"}),
        Request(chat("Text Recognition:", "https://images.example/page.png", **limit)),
        Request(chat("Text Recognition:", blank, model="another-model", **limit)),
        Request(b"{"),
    ]


async def run(chosen: argparse.Namespace) -> None:
    """Have so many clients as each level says, each for its period, without end."""
    async with clients(chosen.gateway, usual(chosen.max_tokens)) as crowd, asyncio.TaskGroup() as group:
        group.create_task(_odd_client(crowd, unusual(chosen.model)))
        group.create_task(_report(crowd))
        for place, level in enumerate(itertools.cycle(chosen.clients)):
            crowd.want(level)
            if chosen.trouble and place % len(chosen.clients) == 0:
                group.create_task(_trouble(chosen.trouble))
            await asyncio.sleep(chosen.period)


async def _odd_client(crowd: Clients, requests: Sequence[Request]) -> None:
    for request in itertools.cycle(requests):
        await crowd.send(request)
        await asyncio.sleep(0.5)


async def _report(crowd: Clients) -> None:
    while True:
        await asyncio.sleep(_REPORT_S)
        ends = ", ".join(f"{count} {what}" for what, count in crowd.ends.most_common())
        print(f"simulated load: {crowd.wanted} clients; {ends or 'nothing ended'}", flush=True)
        crowd.ends.clear()


async def _trouble(engine: str) -> None:
    print(f"simulated: {engine} answers garbage for {TROUBLE_S} s", flush=True)
    async with httpx.AsyncClient(trust_env=False) as http:
        for kind in ("garbage", "none"):
            with contextlib.suppress(httpx.HTTPError):
                await http.post(f"{engine}/faults", json={"kind": kind})
            await asyncio.sleep(TROUBLE_S)


def _levels(text: str) -> tuple[int, ...]:
    levels = text.split(",")
    if not all(level.isdigit() for level in levels):
        raise argparse.ArgumentTypeError(f"numbers of clients are such as 10,40,100, not {text!r}")
    return tuple(map(int, levels))


def options() -> argparse.ArgumentParser:
    """Return what may be said of the clients, as a parent of command lines."""
    found = argparse.ArgumentParser(add_help=False)
    found.add_argument(
        "--clients",
        type=_levels,
        default="10,40,100,150,60",
        metavar="N,N,...",
        help="how many, in turn; default: %(default)s",
    )
    found.add_argument(
        "--period", type=float, default=60.0, metavar="S", help="how long each; default: %(default)s"
    )
    found.add_argument(
        "--max-tokens", type=int, default=300, metavar="N", help="of an answer; default: %(default)s"
    )
    return found


def command_line(chosen: argparse.Namespace) -> list[str]:
    """Return such options as arguments."""
    levels = ",".join(map(str, chosen.clients))
    return [f"--clients={levels}", f"--period={chosen.period}", f"--max-tokens={chosen.max_tokens}"]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(
        prog="python -m deploy.stack.load", description=__doc__, parents=[options()]
    )
    found.add_argument("--gateway", default="http://127.0.0.1:8000", metavar="URL")
    found.add_argument("--model", default="glm-ocr-simulated", help="the gateway's model")
    found.add_argument(
        "--trouble", metavar="URL", help="a simulated engine that fails for a while each round"
    )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until interrupted."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(parser().parse_args(arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
