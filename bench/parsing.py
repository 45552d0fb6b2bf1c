"""`python -m bench.parsing`: what reading a request costs, and what was bought by less plain code.

A request is read, its image checked, it is sorted by its prompt and made ready for an engine, in microseconds
of CPU time. What was bought is measured beside the same work without it, turn by turn in one run. Ends with
status 1 where something is not worth it any more, or a body of 1.5 MB takes longer than it may.
"""

from __future__ import annotations

import base64
import io
import json
import platform
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from gateway.policy.sort.evidence import SortRules, sort
from gateway.server.machine import keep_memory
from gateway.wire import openai
from gateway.wire.image import headers
from gateway.wire.image.headers import open_image, read_head
from gateway.wire.image.structure import count_scans
from gateway.wire.partial_json import Lifted

if TYPE_CHECKING:
    from collections.abc import Callable

RULES = SortRules(("text", "table", "key-value"), "text")
PROMPT = "Table Recognition:"
LONG_PROMPT = "Read this page from top to bottom, and leave nothing out. " * 35
PIXELS = 10**8
TURNS, TURN_BYTES = 15, 10_000_000
BYTES_A_PIXEL = {"PNG": 3.0, "JPEG": 0.6}
# Sorting a body of 1.5 MB by its prompt, parse and image check included.
MOST_US = 800
_MARK = b"\xff\xda"


def noise(size: int, kind: str, **options: Any) -> bytes:
    """An image whose base64 text has about so many bytes."""
    side = round((size * 3 / 4 / BYTES_A_PIXEL[kind]) ** 0.5)
    pixels = np.random.default_rng(1).integers(0, 256, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def request_of(image: bytes | None, prompt: str = PROMPT) -> bytes:
    """A body that asks to read an image."""
    content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
    if image is not None:
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        content.insert(0, {"type": "image_url", "image_url": {"url": url}})
    message = {"role": "user", "content": content}
    return json.dumps({"model": "m", "messages": [message], "stream": True, "max_tokens": 4096}).encode()


def taken(request: openai.CompletionRequest) -> tuple[Any, ...]:
    """Do with a request what the gateway does, up to an engine's choice."""
    for part in request.images:
        data = headers.parse_data_url(part.url).data if part.data is None else part.data
        headers.inspect(data, max_pixels=PIXELS)
    sort(request.facts, RULES)
    return openai.rewritten(request)


def read(body: bytes) -> tuple[Any, ...]:
    """Read a body as the gateway does."""
    return taken(openai.parse_request(body, chat=True, max_images=8))


def read_whole(body: bytes) -> tuple[Any, ...]:
    """The same, but for the image that is cut out of it."""
    return taken(openai._read(body, Lifted(body, {}), True, 8, False))


def measured(size: int, *ways: Callable[[], object]) -> list[list[float]]:
    """Return microseconds a call of each way, measured in turns, for work on so many bytes."""
    calls = max(2, min(500, TURN_BYTES // size))
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(TURNS):
        for way, times in zip(ways, found, strict=True):
            start = time.process_time_ns()
            for _ in range(calls):
                way()
            times.append((time.process_time_ns() - start) / 1e3 / calls)
    return found


def bought() -> list[tuple[str, Callable[[], object], Callable[[], object], float]]:
    """What is done in a less plain way: that way, the plain one, and how many times cheaper it has to be."""
    small, large = (request_of(noise(size, "PNG")) for size in (200_000, 1_500_000))
    page, slow = noise(1_500_000, "JPEG"), noise(1_500_000, "JPEG", progressive=True)
    asked = openai.parse_request(small, chat=True, max_images=1)
    elsewhere = replace(asked, has_options=True)
    return [
        ("an image cut out of 200 kB", partial(read, small), partial(read_whole, small), 2),
        ("an image cut out of 1.5 MB", partial(read, large), partial(read_whole, large), 4),
        (
            "a usual JPEG's size",
            partial(read_head, page, max_pixels=PIXELS),
            partial(open_image, page, max_pixels=PIXELS, header_only=True),
            2,
        ),
        ("a JPEG's scans, where it has one", partial(count_scans, page), lambda: page.count(_MARK), 10),
        ("a JPEG's scans, counted", partial(count_scans, slow), lambda: slow.count(_MARK), 2),
        (
            "usage asked for at the body's end",
            partial(openai.rewritten, asked),
            partial(openai.rewritten, elsewhere),
            3,
        ),
    ]


def told(times: list[float]) -> str:
    """The median, and the range that the turns were in."""
    return f"{statistics.median(times):7.0f} us ({min(times):.0f} to {max(times):.0f})"


def main() -> int:
    """Measure and print; return how much of it is not as it should be."""
    keep_memory()
    print(
        f"Reading a request, CPU time: {platform.machine()} {platform.system()}, "
        f"Python {platform.python_version()}, msgspec {version('msgspec')}, pybase64 {version('pybase64')}, "
        f"Pillow {version('pillow')}, {TURNS} turns"
    )
    wrong = 0
    for name, image, prompt in (
        ("1 kB of text", None, PROMPT * 45),
        ("200 kB, PNG", noise(200_000, "PNG"), PROMPT),
        ("200 kB, PNG, 2,000 characters", noise(200_000, "PNG"), LONG_PROMPT),
        ("200 kB, JPEG", noise(200_000, "JPEG"), PROMPT),
        ("1.5 MB, PNG", noise(1_500_000, "PNG"), PROMPT),
        ("1.5 MB, JPEG", noise(1_500_000, "JPEG"), PROMPT),
        ("1.5 MB, progressive JPEG", noise(1_500_000, "JPEG", progressive=True), PROMPT),
        ("8 MB, PNG", noise(8_000_000, "PNG"), PROMPT),
        ("31 MB, PNG", noise(31_000_000, "PNG"), PROMPT),
    ):
        body = request_of(image, prompt)
        (times,) = measured(len(body), partial(read, body))
        late = name.startswith("1.5 MB") and statistics.median(times) > MOST_US
        wrong += late
        print(f"  {name:<30} {len(body):10,} bytes {told(times)}{f' - MORE THAN {MOST_US} us' * late}")
    print("  what was bought:")
    for name, with_it, without, least in bought():
        ours, plain = measured(200_000, with_it, without)
        times_less = statistics.median(plain) / statistics.median(ours)
        wrong += (lost := times_less < least)
        print(f"    {name:<34} {told(ours)} instead of {told(plain)}{' - TOO LITTLE' * lost}")
    return wrong


if __name__ == "__main__":
    sys.exit(main() > 0)
