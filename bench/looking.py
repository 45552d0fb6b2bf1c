"""What the event loop notices of images that are looked at beside it, and what a look costs: in threads, in a
pool of processes, and as the gateway does it (gateway.images.inspector).

`python -m bench.looking` asks for eight images at a time, for some seconds each way, while a heartbeat on the
loop tells how late it comes. With --core all share one core, as a gateway in a container of one CPU does.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import uvloop
from PIL import Image, ImageDraw, ImageFont

from gateway.images.inspector import WORKERS, ImageInspector
from gateway.images.worker import guess_layout, layout_model
from gateway.wire.image.headers import parse_data_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from gateway.model import LayoutGuess

AT_ONCE = 8
BEAT_S = 0.001
WAYS = {
    "nothing": "no image: the machine's own part",
    "threads": f"{WORKERS} threads",
    "threads-0.5ms": f"{WORKERS} threads, which let go of the interpreter after 0.5 ms",
    "pool-1": "ProcessPoolExecutor of 1",
    "pool-2": "ProcessPoolExecutor of 2",
    "gateway": f"the gateway's {WORKERS} processes",
}
Look = "Callable[[bytes], Awaitable[LayoutGuess | None]]"

_model = layout_model()


def page(width: int, height: int) -> Image.Image:
    """A page of text as a camera or scanner sees it, with noise."""
    sheet = Image.new("RGB", (width, height), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(width // 60)
    for row in range(height // (width // 35) - 4):
        draw.text((width // 12, (row + 2) * width // 35), f"{row} the quick brown fox " * 3, "black", font)
    noise = np.random.default_rng(1).normal(0, 4, (height, width, 1))
    return Image.fromarray((np.asarray(sheet) + noise).clip(0, 255).astype(np.uint8))


def urls() -> list[bytes]:
    """Data URLs of a JPEG, a PNG, a large PNG and a progressive JPEG."""
    sheet, poster = page(1700, 2200), page(5000, 7000)
    # A scanner's own software has cleared the large one of noise: it would not fit into a request with it.
    clean = poster.point(lambda value: 255 if value > 160 else value)
    kinds = (
        (sheet, "JPEG", {"quality": 85}),
        (sheet, "PNG", {"compress_level": 3}),
        (clean, "PNG", {"compress_level": 3}),
        (sheet, "JPEG", {"quality": 85, "progressive": True}),
    )
    made = []
    for image, kind, options in kinds:
        out = io.BytesIO()
        image.save(out, kind, **options)
        made.append(b"data:image/%s;base64,%s" % (kind.lower().encode(), base64.b64encode(out.getvalue())))
    return made


def _look(url: bytes) -> LayoutGuess:
    return guess_layout(parse_data_url(url).data, _model)


@asynccontextmanager
async def looker(way: str) -> AsyncIterator[Callable[[bytes], Awaitable[LayoutGuess | None]]]:
    """Yield what looks at an image in one of WAYS."""
    if way == "gateway":
        async with ImageInspector(patience_s=600) as inspector:
            yield inspector.guess
        return
    kind, _, number = way.partition("-")
    workers: Executor
    if kind == "pool":
        workers = ProcessPoolExecutor(int(number), multiprocessing.get_context("spawn"))
    else:
        workers = ThreadPoolExecutor(WORKERS)
        if number:
            sys.setswitchinterval(0.0005)
    with workers:
        yield lambda url: asyncio.get_running_loop().run_in_executor(workers, _look, url)


async def measure(way: str, images: Sequence[bytes], seconds: float) -> dict[str, float]:
    """Look at images for some seconds; return lags and wall time in ms, CPU in ms for each look."""
    late: list[float] = []
    looks: list[float] = []

    async def beat() -> None:
        while True:
            due = time.perf_counter() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late.append(time.perf_counter() - due)

    async def one(first: int, until: float) -> None:
        for n in range(first, sys.maxsize):
            if (start := time.perf_counter()) > until:
                return
            if await asked(images[n % len(images)]) is None:
                raise RuntimeError("an image was not looked at")
            looks.append(time.perf_counter() - start)

    async with looker(way) as asked:
        if way != "nothing":
            await asyncio.gather(*(asked(url) for url in images))  # what is slow only once
        before = _cpu_s()
        beating = asyncio.create_task(beat())
        until = time.perf_counter() + seconds
        if way == "nothing":
            await asyncio.sleep(seconds)
        await asyncio.gather(*(one(n, until) for n in range(AT_ONCE) if way != "nothing"))
        beating.cancel()
        spent = [(now - then) * 1e3 / max(1, len(looks)) for now, then in zip(_cpu_s(), before, strict=True)]
        resident = _resident_mib()
    p50, p99 = np.percentile(late, (50, 99)) * 1e3
    return {
        **{"p50": p50, "p99": p99, "max": max(late) * 1e3, "cpu": spent[0], "own": spent[1]},
        **{"wall": float(np.median(looks)) * 1e3 if looks else 0.0, "looks": len(looks) / seconds},
        **{"rss": resident[0], "others": resident[1]},
    }


def _children() -> list[int]:
    pid = os.getpid()
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu_s() -> tuple[float, float]:
    """CPU seconds that this process and its children have used, and this process alone."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in _children()]
    own = resource.getrusage(resource.RUSAGE_SELF)
    mine = own.ru_utime + own.ru_stime
    return mine + sum((int(stat[11]) + int(stat[12])) / ticks for stat in stats), mine


def _resident_mib() -> tuple[float, float]:
    """What this process has resident, and its children together."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (os.getpid(), *_children())]
    mib = [count * resource.getpagesize() / 2**20 for count in pages]
    return mib[0], sum(mib[1:])


def report(found: dict[str, list[dict[str, float]]], seconds: float) -> None:
    """Print the medians; the heartbeat's own CPU is taken off."""
    rows = {
        way: {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
        for way, runs in found.items()
    }
    beat = rows["nothing"]["own"] / seconds
    print(f"{AT_ONCE} images at once; medians and worst p99 of {len(found['nothing'])} runs of {seconds:g} s")
    print("lag of the loop, wall and CPU of a look (and the loop's own process's part) in ms; resident MiB")
    heads = ("p50", "p99", "worst", "max", "wall", "CPU", "own", "looks/s", "RSS", "children")
    print(" " * 14 + "".join(f"{head:>9}" for head in heads))
    for way, row in rows.items():
        each = beat / max(1, row["looks"])
        values = [row["p50"], row["p99"], max(run["p99"] for run in found[way]), row["max"]]
        if row["looks"]:
            values += [row["wall"], row["cpu"] - each, row["own"] - each]
            values += [row["looks"], row["rss"], row["others"]]
        print(f"{way:<14}" + "".join(f"{value:9.1f}" for value in values))


def main(arguments: Sequence[str] = ()) -> None:
    """Measure every way, each in a process of its own, several times in turns; print the medians."""
    parser = argparse.ArgumentParser(prog="python -m bench.looking", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each; default: 5")
    parser.add_argument("--repeats", type=int, default=3, help="default: 3")
    parser.add_argument("--core", type=int, help="let all share this core")
    parser.add_argument("--quick", action="store_true", help="the gateway's own way only, once")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    if options.way:
        images = sys.stdin.buffer.read().split(b"\n")
        print(json.dumps(uvloop.run(measure(options.way, images, options.seconds))))
        return
    ways, repeats = (["nothing", "gateway"], 1) if options.quick else (list(WAYS), options.repeats)
    images = b"\n".join(urls())
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            command = [sys.executable, "-m", "bench.looking", "--way", way, "--seconds", str(options.seconds)]
            run = subprocess.run(command, input=images, stdout=subprocess.PIPE, check=True)
            found[way].append(json.loads(run.stdout))
    report(found, options.seconds)
    for way in ways:
        print(f"  {way}: {WAYS[way]}")


if __name__ == "__main__":
    main(sys.argv[1:])
