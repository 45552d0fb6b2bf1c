"""`python -m gateway.tools.demo.demo_load`: clients of a gateway in a closed loop, few, then many, then few.

They ask as OCR clients do, for text, tables and values.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

PATH = "/v1/chat/completions"
# Of each route's prompts one; clients take them in turn.
PROMPTS = ("Text Recognition:", "Table Recognition:", "Output the value of total")
_LONGEST_WAIT_S = 10.0
_CHANGE_S = 0.5


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


class Clients:
    """A number of clients, each of which sends its next request once the last has been answered.

    Attributes:
        ends: how requests ended, and how many; may be cleared.
        wanted: how many clients there should be.
    """

    def __init__(
        self,
        gateway: str,
        requests: Sequence[Request],
        http: httpx.AsyncClient,
        group: asyncio.TaskGroup,
    ) -> None:
        """Have none; see `clients`.

        Args:
            gateway: its base URL.
            requests: what they send: the first client the first, the second the second, and so on in turn.
            http: sends them.
            group: runs the clients.
        """
        self._url = gateway + PATH
        self._requests = requests
        self._http = http
        self._group = group
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.wanted = 0
        self.ends: Counter[str] = Counter()

    def want(self, number: int) -> None:
        """Have so many clients; who is too much leaves when its request has been answered."""
        self.wanted = number
        for client in range(number):
            if client not in self._tasks or self._tasks[client].done():
                self._tasks[client] = self._group.create_task(self._client(client))

    async def send(self, request: Request) -> float:
        """Send a request; return how many seconds the client should wait before the next."""
        headers = {"content-type": "application/json", **request.headers}
        try:
            async with (
                asyncio.timeout(request.leaves_s),
                self._http.stream("POST", self._url, content=request.body, headers=headers) as reply,
            ):
                async for _ in reply.aiter_raw():
                    pass
        except TimeoutError:
            self.ends["left"] += 1
            return 0.0
        except httpx.HTTPError:
            self.ends["broken off"] += 1
            return 1.0
        status = reply.status_code
        self.ends["answered" if status == 200 else str(status)] += 1
        if status == 200:
            return 0.0
        return min(float(reply.headers.get("retry-after", 1)), _LONGEST_WAIT_S)

    def leave(self) -> None:
        """Break off every client's request."""
        for task in self._tasks.values():
            task.cancel()

    async def _client(self, number: int) -> None:
        request = self._requests[number % len(self._requests)]
        while number < self.wanted:  # noqa: ASYNC110 - each round is a request
            await asyncio.sleep(await self.send(request))


@contextlib.asynccontextmanager
async def clients(gateway: str, requests: Sequence[Request]) -> AsyncIterator[Clients]:
    """Have clients of a gateway until the block is left; see Clients."""
    # A connection a request: httpx' pool may close a kept one just as it gives it to a request. No time-out,
    # since a request may wait for long.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as http,  # noqa: S113
        asyncio.TaskGroup() as group,
    ):
        found = Clients(gateway, requests, http, group)
        try:
            yield found
        finally:
            found.leave()


def breath(at_s: float, period_s: float, few: int, many: int) -> int:
    """Return how many clients there are at a time: few at first, many after half a period, then few again.

    They are few for longer, so that the long requests of the crowd end before it comes back.
    """
    share = (1 - math.cos(2 * math.pi * at_s / period_s)) / 2
    return round(few + (many - few) * share**2)


async def run(gateway: str, few: int, many: int, period_s: float) -> None:
    """Have few and many clients in turn, without end.

    Args:
        gateway: its base URL.
        few: the fewest clients.
        many: the most.
        period_s: from few to few, in seconds.
    """
    image = page()
    # They tell their acceptance, which streams would let us estimate only.
    requests = [Request(chat(prompt, image)) for prompt in PROMPTS]
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with clients(gateway, requests) as crowd:
        while True:
            crowd.want(breath(loop.time() - started, period_s, few, many))
            await asyncio.sleep(_CHANGE_S)


def arguments(gateway: str, few: int, many: int, period_s: float) -> list[str]:
    """Return what follows the Python interpreter for `run` in a process of its own."""
    options = [f"--few={few}", f"--many={many}", f"--period={period_s}"]
    return ["-m", "gateway.tools.demo.demo_load", f"--gateway={gateway}", *options]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    found = argparse.ArgumentParser(prog="python -m gateway.tools.demo.demo_load", description=__doc__)
    found.add_argument("--gateway", required=True, metavar="URL")
    found.add_argument("--few", type=int, required=True, metavar="N", help="the fewest clients")
    found.add_argument("--many", type=int, required=True, metavar="N", help="the most")
    found.add_argument("--period", type=float, required=True, metavar="S", help="from few to few, in seconds")
    return found


def main(command: Sequence[str] | None = None) -> None:
    """Run until interrupted."""
    chosen = parser().parse_args(command)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(chosen.gateway, chosen.few, chosen.many, chosen.period))


if __name__ == "__main__":
    main(sys.argv[1:])
