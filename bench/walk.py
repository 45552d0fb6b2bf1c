"""`python -m bench.walk`: which files of gateway/ one request runs through, and how often it changes files.

The gateway runs here as `ocr-gateway serve` runs it, with two simulated engines in processes of their own. It
gets chat completions with an image that are sorted by their prompt: one answered whole, one streamed. While
one is under way, every Python call on the event loop's thread is recorded:

* from the client's connecting until its connection is closed and the request is logged;
* after a first request of its kind, so without imports and caches that are filled once;
* without tasks that ran before it (pollers, the server's clock) and without gateway/engines.

Files: those in which at least one function was called.
Moves: calls of a function in another file than the caller's. The caller is the innermost frame of gateway/ on
the stack: for a callback that is the file which runs the event loop. Returns and resumed coroutines are no moves.

Of five requests the one with the median number of moves is reported: a poll's answer may arrive beside one.
It works for other checkouts, whose files may be named otherwise: `PYTHONPATH=. python THIS_FILE` there.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gateway
from gateway import cli

if TYPE_CHECKING:
    from types import CodeType, FrameType

PACKAGE = str(Path(gateway.__file__ or "").parent) + os.sep
REQUESTS, PAIRS = 5, 15
CONFIG = """
model: glm-ocr
pools:
  mtp3: {{speculative_config: {{method: mtp, num_speculative_tokens: 3}}, engines: ["http://127.0.0.1:{}"]}}
  plain: {{engines: ["http://127.0.0.1:{}"]}}
routes: {{text: {{schedule: [[1, 4096, 3]]}}, table: {{schedule: [[1, 63, 3], [64, 4096, 0]]}}}}
sorting: {{default: text}}
"""
IMAGE_URL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAFElEQVR42mP8zwABTAyjjFEGyQwAzx8Bf7QK4E8AAAAASUVORK5CYII="
)
CONTENT = [
    {"type": "image_url", "image_url": {"url": IMAGE_URL}},
    {"type": "text", "text": "Table Recognition:"},
]


class Recorder:
    """A profile function that counts, while `on`, which file calls which."""

    def __init__(self) -> None:
        self.on = False

    def begin(self) -> None:
        """Forget what was recorded, and record."""
        self.files: set[str] = set()
        self.moves: Counter[tuple[str, str]] = Counter()
        self._background: set[asyncio.Task[Any]] | None = None
        self.on = True

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call."""
        if not self.on or event != "call" or not (callee := _file(frame)):
            return
        if frame.f_lasti > _start(frame.f_code):
            return  # a coroutine or generator goes on
        if self._background is None:
            self._background = asyncio.all_tasks()
        if asyncio.current_task() in self._background:
            return
        above = frame.f_back
        while above and not (caller := _file(above)):
            above = above.f_back
        self.files.add(callee)
        if above and caller != callee:
            self.moves[caller, callee] += 1


def _file(frame: FrameType) -> str:
    """Return a frame's file in the package; "" for others and the engines' own."""
    name = frame.f_code.co_filename.removeprefix(PACKAGE)
    return "" if name == frame.f_code.co_filename or name.startswith("engines") else name


@functools.cache
def _start(code: CodeType) -> int:
    """Return the offset where a call of it begins."""
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")


def _ask(url: str, *, stream: bool) -> None:
    """Send one request on a connection of its own and read its answer."""
    message = {"role": "user", "content": CONTENT}
    body = json.dumps({"model": "glm-ocr", "max_tokens": 8, "stream": stream, "messages": [message]}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
        assert answer.headers["x-ocr-route-reason"] == "prompt"


def _report(url: str, recorder: Recorder, *, stream: bool) -> None:
    """Ask, and print the median walk."""
    _ask(url, stream=stream)
    walks = []
    for _ in range(REQUESTS):
        time.sleep(0.3)
        recorder.begin()
        _ask(url, stream=stream)
        time.sleep(0.2)
        recorder.on = False
        walks.append((recorder.moves, sorted(recorder.files)))
    moves, files = sorted(walks, key=lambda walk: walk[0].total())[REQUESTS // 2]
    print(f"\n## {'Streamed' if stream else 'Whole'}: {len(files)} files, {moves.total()} moves\n")
    print("| from | to | moves |\n|---|---|---|")
    for (caller, callee), count in moves.most_common(PAIRS):
        print(f"| {caller} | {callee} | {count} |")
    print("\nFiles: " + ", ".join(files), flush=True)


def _clients(url: str, recorder: Recorder) -> None:
    """Wait for the gateway, send both kinds of request, and stop it."""
    try:
        while True:
            try:
                _ask(url, stream=False)
                break
            except OSError:  # it does not listen yet, or its engines do not
                time.sleep(0.3)
        _report(url, recorder, stream=False)
        _report(url, recorder, stream=True)
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Serve, ask, and print."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    deep, plain, port = (str(one.getsockname()[1]) for one in sockets)
    for one in sockets:
        one.close()
    command = [sys.executable, "-m", "gateway.cli", "simulated-engine", "--depth"]
    engines = [
        subprocess.Popen([*command, depth, "--port", at], stderr=subprocess.DEVNULL)
        for depth, at in (("3", deep), ("0", plain))
    ]
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "routes.yaml")
        config.write_text(CONFIG.format(deep, plain))
        threading.Thread(target=_clients, args=(f"http://127.0.0.1:{port}", recorder)).start()
        sys.setprofile(recorder)
        try:
            cli.main(["serve", "--config", str(config), "--port", port])
        finally:
            sys.setprofile(None)
            for engine in engines:
                engine.terminate()
                engine.wait()


if __name__ == "__main__":
    main()
