"""Pods as processes: readiness, endpoints and termination in the order and time that a kubelet has them.

What is read of a workload is its rendered manifest, so that a rehearsal plays what would be applied.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
# More than any timeoutSeconds: that a machine is too busy for all these processes is not what is rehearsed.
_PROBE_TIMEOUT_S = 60


class PodError(Exception):
    """A pod did not do what a rehearsal takes for granted, such as become ready."""


def find(objects: Iterable[Mapping[str, Any]], kind: str, name: str) -> Mapping[str, Any]:
    """Return the object of a kind and name.

    Raises:
        KeyError: there is none.
    """
    for one in objects:
        if one["kind"] == kind and one["metadata"]["name"] == name:
            return one
    raise KeyError(f"{kind} {name}")


@dataclass(frozen=True)
class Lifecycle:
    """How a kubelet starts and ends a workload's pods, in seconds; native defaults where it does not say.

    Attributes:
        container: the first container's name.
        ready_path: asked for by the readiness probe.
        ready_period_s: between two probes.
        ready_failures: after so many in a row a pod is not ready any more.
        ready_successes: after so many in a row it is.
        pre_stop_s: the preStop hook's sleep.
        grace_s: from the begin of the termination, preStop included, to SIGKILL.
        min_ready_s: a pod that has been ready for so long is available.
    """

    container: str
    ready_path: str
    ready_period_s: float
    ready_failures: int
    ready_successes: int
    pre_stop_s: float
    grace_s: float
    min_ready_s: float

    @classmethod
    def of(cls, workload: Mapping[str, Any], pace: float = 1.0) -> Lifecycle:
        """Read a Deployment or StatefulSet; `pace` multiplies every time.

        Raises:
            KeyError: it has no readiness probe over HTTP, or a preStop hook that is no sleep.
        """
        spec = workload["spec"]
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        probe = container["readinessProbe"]
        hook = container.get("lifecycle", {}).get("preStop")
        return cls(
            container=container["name"],
            ready_path=probe["httpGet"]["path"],
            ready_period_s=pace * probe.get("periodSeconds", 10),
            ready_failures=probe.get("failureThreshold", 3),
            ready_successes=probe.get("successThreshold", 1),
            pre_stop_s=pace * hook["sleep"]["seconds"] if hook else 0,
            grace_s=pace * pod.get("terminationGracePeriodSeconds", 30),
            min_ready_s=pace * spec.get("minReadySeconds", 0),
        )

    def without_warning(self) -> Lifecycle:
        """Return the same without preStop and grace: what a node does that dies."""
        return replace(self, pre_stop_s=0, grace_s=0)


@dataclass(frozen=True)
class Ended:
    """How a pod ended: its exit status, negative for a signal, and whether it had to be killed."""

    status: int
    killed: bool
    took_s: float

    def __str__(self) -> str:
        how = "killed" if self.killed else f"exit status {self.status}"
        return f"has ended after {self.took_s:.1f} s: {how}"

    @property
    def fault(self) -> str:
        """What was not as it should be; empty where it ended well."""
        if self.killed:
            return "was killed: its grace was over"
        return f"ended with exit status {self.status}" if self.status else ""


class Pod:
    """One process in a pod's place, probed while it runs."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        url: str,
        lifecycle: Lifecycle,
        on_ready: Callable[[Pod, bool], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a pod; `start` starts it.

        Args:
            name: for messages.
            command: the container's, as a process of this machine.
            url: where it listens.
            lifecycle: as its workload has it.
            on_ready: called at each change of readiness; termination counts as not ready.
            env: added to this process's own environment.
        """
        self.name = name
        self.url = url
        self.lifecycle = lifecycle
        self.ready = self.terminating = False
        self._command = list(command)
        self._on_ready = on_ready
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._came_up = asyncio.Event()
        self._probing: asyncio.Task[None] | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The process, once started."""
        if self._process is None:
            raise PodError(f"{self.name} has not been started")
        return self._process

    async def start(self) -> None:
        """Start the process, and to probe it."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=ROOT, env=self._env, stderr=asyncio.subprocess.DEVNULL
        )
        self._probing = asyncio.create_task(self._probe())

    async def wait_ready(self, within_s: float = 60) -> None:
        """Wait until it is ready.

        Raises:
            PodError: it ended, or did not become ready in time.
        """
        both = [asyncio.create_task(self._came_up.wait()), asyncio.create_task(self.process.wait())]
        await asyncio.wait(both, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        if self.process.returncode is not None:
            raise PodError(f"{self.name} ended with exit status {self.process.returncode}")
        if not self.ready:
            raise PodError(f"{self.name} is not ready after {within_s:g} s")

    async def terminate(self) -> Ended:
        """End it as a kubelet does: no endpoint any more, preStop, SIGTERM; SIGKILL when grace is over."""
        began = time.monotonic()
        end = began + self.lifecycle.grace_s
        self.terminating = True
        await self._stop_probing()
        self._set_ready(False)
        if not await self._ended_by(min(began + self.lifecycle.pre_stop_s, end)):
            self.process.terminate()
        killed = not await self._ended_by(end)
        if killed:
            self.process.kill()
        return Ended(await self.process.wait(), killed, time.monotonic() - began)

    async def kill(self) -> None:
        """Kill it where it still runs, and clean up."""
        await self._stop_probing()
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _ended_by(self, end: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                await self.process.wait()
        except TimeoutError:
            return False
        return True

    async def _stop_probing(self) -> None:
        if self._probing:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)

    def _set_ready(self, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            (self._came_up.set if ready else self._came_up.clear)()
            self._on_ready(self, ready)

    async def _probe(self) -> None:
        url = self.url + self.lifecycle.ready_path
        # A kubelet opens a connection for each probe.
        limits = httpx.Limits(max_keepalive_connections=0)
        successes = failures = 0
        async with httpx.AsyncClient(limits=limits, timeout=_PROBE_TIMEOUT_S, trust_env=False) as http:
            while True:
                if await _answers(http, url):
                    successes, failures = successes + 1, 0
                else:
                    successes, failures = 0, failures + 1
                if successes >= self.lifecycle.ready_successes:
                    self._set_ready(True)
                elif failures >= self.lifecycle.ready_failures:
                    self._set_ready(False)
                await asyncio.sleep(self.lifecycle.ready_period_s)


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return 200 <= (await http.get(url)).status_code < 400
    except httpx.HTTPError:
        return False


class Endpoints:
    """A Service's addresses; senders learn of a change after a delay, as in a cluster."""

    def __init__(self, delay_s: float, apply: Callable[[frozenset[str]], None]) -> None:
        """Start without addresses.

        Args:
            delay_s: from a change to its effect.
            apply: takes all addresses over.
        """
        self._delay_s = delay_s
        self._apply = apply
        self._urls: frozenset[str] = frozenset()

    def set(self, url: str, ready: bool) -> None:
        """Add or remove an address."""
        urls = self._urls | {url} if ready else self._urls - {url}
        if urls != self._urls:
            self._urls = urls
            asyncio.get_running_loop().call_later(self._delay_s, self._apply, urls)


def mount(folder: Path, data: Mapping[str, str]) -> None:
    """Mount a ConfigMap into a folder, or update one, as a kubelet does: `..data` is swapped, files follow.

    The names stay symbolic links into `..data`, a symbolic link to a folder of this version.
    """
    folder.mkdir(exist_ok=True)
    version = folder / f"..{time.monotonic_ns()}"
    version.mkdir()
    for name, text in data.items():
        (version / name).write_text(text)
    current = folder / "..data"
    before = current.resolve() if current.is_symlink() else None
    fresh = folder / "..data_tmp"
    fresh.symlink_to(version.name)
    fresh.replace(current)
    for name in data:
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(Path("..data") / name)
    for link in folder.iterdir():
        if not link.name.startswith("..") and link.name not in data:
            link.unlink()
    if before:
        shutil.rmtree(before)
