"""`python -m bench.walk`: which files of gateway/ one request runs through, and how often it changes files.

A gateway runs here as `ocr-gateway serve` runs it, with two simulated engines beside it. It gets a chat
completion with an image that is sorted by its prompt, once whole and once streamed. Every Python call on the
event loop's thread is recorded until the request is logged, without imports and first-time caches (another
request goes before), older tasks (pollers), and gateway/engines. The median of five requests is reported.
Another checkout: `PYTHONPATH=. python THIS_FILE` in its folder.
Files: those that are called. Moves: calls of a function in another file than the caller's. The caller is
the innermost frame of gateway/; for a callback that is the file which runs the event loop, which is itself
called by nothing of the request and no file of its walk. Returns and resumed coroutines are no moves.
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

from bench.serving import free_port
from gateway import cli

if TYPE_CHECKING:
    from types import CodeType, FrameType

PACKAGE = str(Path(cli.__file__).parent) + os.sep
REQUESTS = 5
CONFIG = """model: glm-ocr
pools:
  mtp3: {{speculative_config: {{method: mtp, num_speculative_tokens: 3}}, engines: ["http://127.0.0.1:{}"]}}
  plain: {{engines: ["http://127.0.0.1:{}"]}}
routes: {{text: {{schedule: [[1, 4096, 3]]}}, table: {{schedule: [[1, 63, 3], [64, 4096, 0]]}}}}
sorting: {{default: text}}"""
PNG = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQAQAAAAA3iMLMAAAADElEQVR42mNgIA0AAAAwAAEodEl9AAAAAElFTkSuQmCC"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + PNG}}
MESSAGE = {"role": "user", "content": [IMAGE, {"type": "text", "text": "Table Recognition:"}]}


class Recorder:
    """A profile function that counts, while `on`, which file calls which."""

    on = False

    def begin(self) -> None:
        """Forget what was recorded, and record."""
        self.moves: Counter[tuple[str, str]] = Counter()
        self._background: set[asyncio.Task[Any]] = set()
        self.on = True

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call."""
        if not self.on or event != "call" or not (callee := _file(frame)):
            return
        self._background = self._background or asyncio.all_tasks()
        resumed = frame.f_lasti > _start(frame.f_code)  # a coroutine or generator goes on
        if resumed or asyncio.current_task() in self._background:
            return
        above, caller = frame.f_back, ""
        while above and not (caller := _file(above)):
            above = above.f_back
        if caller not in ("", callee):
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
    body = json.dumps({"model": "glm-ocr", "max_tokens": 8, "stream": stream, "messages": [MESSAGE]}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
        assert answer.headers["x-ocr-route-reason"] == "prompt"


def _wait_for(port: int) -> None:
    """Wait until something listens on a port of this machine."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)


def _report(url: str, recorder: Recorder, *, stream: bool) -> None:
    """Ask, and print the median walk."""
    walks = []
    for _ in range(1 + REQUESTS):
        recorder.begin()
        _ask(url, stream=stream)
        time.sleep(0.4)  # for its log line, and what it leaves to be done later
        recorder.on = False
        walks.append(recorder.moves)
    moves = sorted(walks[1:], key=Counter.total)[REQUESTS // 2]
    files = sorted({callee for _, callee in moves})
    print(f"\n## {'Streamed' if stream else 'Whole'}: {len(files)} files, {moves.total()} moves")
    print("\n| from | to | moves |\n|---|---|---|")
    for (caller, callee), count in moves.most_common(15):
        print(f"| {caller} | {callee} | {count} |")
    print("\nFiles: " + ", ".join(files), flush=True)


def _clients(url: str, recorder: Recorder) -> None:
    """Wait for the gateway, send both kinds of request, and stop it."""
    try:
        for _ in range(200):
            try:
                _ask(url, stream=False)
                break
            except OSError:  # it is starting
                time.sleep(0.3)
        for stream in (False, True):
            _report(url, recorder, stream=stream)
    finally:
        os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Serve, ask, and print."""
    deep, plain, port = (str(free_port()) for _ in range(3))
    command = [sys.executable, "-m", "gateway.cli", "simulated-engine", "--port"]
    engines = [subprocess.Popen([*command, deep, "--depth", "3"]), subprocess.Popen([*command, plain])]
    for at in (deep, plain):  # one that comes up after the gateway would be on probation
        _wait_for(int(at))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "routes.yaml")
        config.write_text(CONFIG.format(deep, plain))
        threading.Thread(target=_clients, args=(f"http://127.0.0.1:{port}", recorder := Recorder())).start()
        sys.setprofile(recorder)
        try:
            cli.main(["serve", "--config", str(config), "--port", port])
        finally:
            sys.setprofile(None)
            for engine in engines:
                engine.kill()


if __name__ == "__main__":
    main()
