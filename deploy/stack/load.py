"""`python -m deploy.stack.load`: clients of the local stack in a closed loop, more and fewer of them in turn.

Most ask as OCR clients do, for text, tables and values; one asks in every other way, and for what is refused.
What answers is simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import itertools
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = "/v1/chat/completions"
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
_LONGEST_WAIT_S = 10.0
_SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}, "date": {"type": "string"}}}


@dataclass(frozen=True)
class Request:
    """What one client sends; it goes away after `leaves_s`."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    leaves_s: float | None = None


def page(*, ruled: bool = False) -> str:
    """Return a small page as a data URL; `ruled` has a table on it."""
    image = Image.new("L", (420, 300), 255)
    draw = ImageDraw.Draw(image)
    for y in range(20, 290, 30):
        draw.text((30, y + 8), "item      quantity      price      amount", fill=0)
        if ruled:
            draw.line((20, y, 400, y), fill=0, width=2)
    if ruled:
        for x in range(20, 410, 95):
            draw.line((x, 20, x, 260), fill=0, width=2)
    data = io.BytesIO()
    image.save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def chat(prompt: str | None, image: str | None, **members: Any) -> bytes:
    """Return a chat request's body."""
    parts: list[dict[str, Any]] = []
    if image:
        parts.append({"type": "image_url", "image_url": {"url": image}})
    if prompt:
        parts.append({"type": "text", "text": prompt})
    return json.dumps({"messages": [{"role": "user", "content": parts}], **members}).encode()


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


class Load:
    """Clients, and what became of their requests since the last report."""

    def __init__(self, gateway: str, model: str, *, max_tokens: int) -> None:
        self._url = gateway + PATH
        self._usual = usual(max_tokens)
        self._unusual = unusual(model)
        self._clients: dict[int, asyncio.Task[None]] = {}
        self._wanted = 0
        self._ends: Counter[str] = Counter()

    async def run(self, levels: Sequence[int], period_s: float, trouble: str | None) -> None:
        """Have so many clients, each level for `period_s`, without end.

        Args:
            levels: numbers of clients, in turn.
            period_s: how long each lasts.
            trouble: a simulated engine that is made to answer garbage for a while in each round.
        """
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as self._session, asyncio.TaskGroup() as group:
            group.create_task(self._odd_client())
            group.create_task(self._report())
            for place, level in enumerate(itertools.cycle(levels)):
                self._wanted = level
                for number in range(level):
                    if number not in self._clients or self._clients[number].done():
                        self._clients[number] = group.create_task(self._client(number))
                if trouble and place % len(levels) == 0:
                    group.create_task(self._trouble(trouble))
                await asyncio.sleep(period_s)

    async def _client(self, number: int) -> None:
        request = self._usual[number % len(self._usual)]
        while number < self._wanted:
            pause_s = await self._send(request)
            await asyncio.sleep(pause_s)

    async def _odd_client(self) -> None:
        for request in itertools.cycle(self._unusual):
            await self._send(request)
            await asyncio.sleep(0.5)

    async def _send(self, request: Request) -> float:
        """Send a request; return how many seconds the client should wait before the next."""
        headers = {"content-type": "application/json", **request.headers}
        try:
            async with (
                asyncio.timeout(request.leaves_s),
                self._session.post(self._url, data=request.body, headers=headers) as reply,
            ):
                async for _ in reply.content.iter_any():
                    pass
        except TimeoutError:
            self._ends["left"] += 1
            return 0.0
        except aiohttp.ClientError:
            self._ends["broken off"] += 1
            return 1.0
        self._ends["answered" if reply.status == 200 else str(reply.status)] += 1
        if reply.status == 200:
            return 0.0
        return min(float(reply.headers.get("retry-after", 1)), _LONGEST_WAIT_S)

    async def _trouble(self, engine: str) -> None:
        print(f"simulated: {engine} answers garbage for {TROUBLE_S} s", flush=True)
        for kind in ("garbage", "none"):
            with contextlib.suppress(aiohttp.ClientError):
                async with self._session.post(f"{engine}/faults", json={"kind": kind}) as reply:
                    await reply.read()
            await asyncio.sleep(TROUBLE_S)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            ends = ", ".join(f"{count} {what}" for what, count in self._ends.most_common())
            print(f"simulated load: {self._wanted} clients; {ends or 'nothing ended'}", flush=True)
            self._ends.clear()


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
    clients = ",".join(map(str, chosen.clients))
    return [f"--clients={clients}", f"--period={chosen.period}", f"--max-tokens={chosen.max_tokens}"]


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
    chosen = parser().parse_args(arguments)
    load = Load(chosen.gateway, chosen.model, max_tokens=chosen.max_tokens)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(load.run(chosen.clients, chosen.period, chosen.trouble))


if __name__ == "__main__":
    main(sys.argv[1:])
