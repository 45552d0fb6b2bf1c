"""`python -m deploy.rehearsal gateway`: a ConfigMap's change and a rolling update of gateways, under load.

Gateways of the production overlay run as processes behind a balancer; preStop, grace, probes, linger and
drain are those of its manifests. Their engines are simulated. A failed request makes it exit with status 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvloop
import yaml

from deploy.rehearsal import common
from deploy.rehearsal.balancer import MODES, Balancer, Mode
from deploy.rehearsal.clients import Clients, Tally
from deploy.rehearsal.common import (
    CLIENTS,
    CONFIG_MAP,
    FILE,
    GATEWAY,
    KEY,
    OVERLAY,
    PROPAGATION_S,
    TOKENS,
    admin_url,
    conclude,
    placed,
    say,
)
from deploy.rehearsal.pods import (
    ROOT,
    Ended,
    Endpoints,
    Lifecycle,
    Pod,
    PodError,
    find,
    free_port,
    mount,
    rendered,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

# Long answers outlast preStop and linger together, at the 30 to 40 tokens/s that a request then has.
LONG_TOKENS = 1200
_START_S = 180
# A machine too busy for all these processes is not what is rehearsed.
_CONNECT_S = 30
_RELOADED_S = 120
_LOOK_S = 0.1


@dataclass(frozen=True)
class Options:
    """What is rehearsed.

    Attributes:
        clients: how many ask at once.
        replicas: how many gateways there are.
        pace: all times of the manifests and of server.linger_s and drain_s, multiplied by this.
        mode: what the balancer balances.
        abrupt: gateways are killed instead of terminated: requests are lost, and the rehearsal says so. The
            configuration stays as it is.
    """

    clients: int = CLIENTS
    replicas: int = 2
    pace: float = 1.0
    mode: Mode = "connections"
    abrupt: bool = False


@dataclass
class Report:
    """What came of a rehearsal.

    Attributes:
        tally: the clients'.
        ended: how each gateway that was replaced ended, by name.
        reloads: gateways that took the ConfigMap's change over, and refused its invalid one.
        took_s: seconds from the first request to the last.
    """

    tally: Tally = field(default_factory=Tally)
    ended: dict[str, Ended] = field(default_factory=dict)
    reloads: int = 0
    took_s: float = 0.0

    def faults(self, options: Options) -> list[str]:
        """Return what was not as it should be."""
        found = [f"{number} requests failed: {reason}" for reason, number in self.tally.reasons.items()]
        if len(self.ended) != options.replicas:
            found.append(f"{len(self.ended)} of {options.replicas} gateways were replaced")
        if self.reloads != options.replicas and not options.abrupt:
            found.append(f"{self.reloads} of {options.replicas} gateways took the ConfigMap's change over")
        return found + [f"{name} {ended.fault}" for name, ended in self.ended.items() if ended.fault]


class Rehearsal:
    """A Deployment of gateways with its Service and ConfigMap."""

    def __init__(self, options: Options, folder: Path, say: Callable[[str], None]) -> None:
        """Read the overlay.

        Args:
            options: what is rehearsed.
            folder: where ConfigMaps are mounted.
            say: hears of progress.

        Raises:
            PodError: its strategy is not the one that is rehearsed.
        """
        objects = rendered(OVERLAY)
        self._options = options
        self._folder = folder
        self._say = say
        self._deployment = find(objects, "Deployment", GATEWAY)
        rolling = self._deployment["spec"]["strategy"]["rollingUpdate"]
        if (rolling["maxSurge"], rolling["maxUnavailable"]) != (1, 0):
            raise PodError(f"maxSurge 1 and maxUnavailable 0 are rehearsed, not {rolling}")
        lifecycle = Lifecycle.of(self._deployment, options.pace)
        self._lifecycle = lifecycle.without_warning() if options.abrupt else lifecycle
        self._map = dict(find(objects, "ConfigMap", CONFIG_MAP)["data"])
        self._routes = yaml.safe_load(self._map[FILE])
        for limit in ("linger_s", "drain_s"):
            self._routes["server"][limit] *= options.pace
        for route in self._routes["routes"].values():
            route.setdefault("timeouts", {})["connect_s"] = _CONNECT_S
        self._pods: list[Pod] = []
        self._placed: dict[str, dict[str, Any]] = {}
        self._started = 0
        self._endpoints = Endpoints(PROPAGATION_S * options.pace, lambda _: None)
        self.report = Report()

    async def run(self) -> Report:
        """Rehearse, and return what came of it.

        Raises:
            PodError: a gateway did not start, or did not take a ConfigMap's change over.
        """
        options = self._options
        with self._engines():
            async with Balancer(options.mode) as balancer:
                self._endpoints = Endpoints(PROPAGATION_S * options.pace, balancer.set)
                async with self._gateways():
                    await asyncio.sleep(PROPAGATION_S * options.pace)
                    clients = Clients(
                        balancer.url,
                        self._routes["model"],
                        options.clients,
                        key=KEY,
                        tokens=TOKENS,
                        long_tokens=max(2 * TOKENS, round(LONG_TOKENS * options.pace)),
                        pace=options.pace,
                    )
                    self.report.tally = clients.tally
                    began = time.monotonic()
                    async with clients:
                        await clients.answered(options.clients)
                        if not options.abrupt:
                            await self._change_config()
                            await clients.answered(options.clients)
                        await self._update()
                        await clients.answered(options.clients)
                    self.report.took_s = time.monotonic() - began
        return self.report

    @contextlib.contextmanager
    def _engines(self) -> Iterator[None]:
        """Run simulated engines, one a pool and another in the last, and have the configuration name them."""
        processes: list[subprocess.Popen[bytes]] = []
        pools = list(self._routes["pools"].values())
        for pool in pools:
            depth = pool.get("speculative_config", {}).get("num_speculative_tokens", 0)
            ports = [free_port() for _ in range(2 if pool is pools[-1] else 1)]
            pool["engines"] = [f"dns+http://localhost:{port}" for port in ports]
            for port in ports:
                flags = {"port": port, "depth": depth, "seed": len(processes), "model": self._routes["model"]}
                command = [sys.executable, "-m", "gateway.cli", "simulated-engine"]
                command += [f"--{name}={value}" for name, value in flags.items()]
                processes.append(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL))  # noqa: S603
        try:
            yield
        finally:
            for process in processes:
                process.kill()
                process.wait()

    @contextlib.asynccontextmanager
    async def _gateways(self) -> AsyncIterator[None]:
        """Run the first gateways; in the end, end every one that runs."""
        try:
            pods = [await self._start() for _ in range(self._options.replicas)]
            await asyncio.gather(*(pod.wait_ready(_START_S) for pod in pods))
            yield
        finally:
            await asyncio.gather(*(pod.kill() for pod in self._pods))

    async def _start(self) -> Pod:
        self._started += 1
        name = f"{GATEWAY}-{self._started}"
        self._placed[name] = placed(self._routes, self._folder)
        self._mount(name, self._routes)
        port = free_port()
        pod = Pod(
            name,
            self._command(self._folder / name, port),
            f"http://127.0.0.1:{port}",
            self._lifecycle,
            self._readiness,
            {
                variable["name"]: variable.get("value", "rehearsal")
                for variable in self._container.get("env", ())
            },
        )
        self._pods.append(pod)
        await pod.start()
        return pod

    def _readiness(self, pod: Pod, ready: bool) -> None:
        self._endpoints.set(pod.url, ready)
        if not ready and not pod.terminating:
            self._say(f"{pod.name} does not answer its readiness probe")

    @property
    def _container(self) -> Mapping[str, Any]:
        container: Mapping[str, Any] = self._deployment["spec"]["template"]["spec"]["containers"][0]
        return container

    def _command(self, mounted: Path, port: int) -> list[str]:
        """The container's command on this machine: its own arguments, with another folder and address."""
        (path,) = [
            mount["mountPath"] for mount in self._container["volumeMounts"] if mount["name"] == "routes"
        ]
        arguments = [argument.replace(path, str(mounted)) for argument in self._container["args"]]
        return [sys.executable, "-m", "gateway.cli", *arguments, "--host=127.0.0.1", f"--port={port}"]

    def _mount(self, name: str, routes: Mapping[str, Any]) -> None:
        own = {key: self._placed[name][key] for key in ("auth", "server")}
        mount(self._folder / name, {**self._map, FILE: yaml.safe_dump({**routes, **own})})

    async def _change_config(self) -> None:
        """Bring a change, an invalid one and a valid one to each gateway in turn, as kubelets would."""
        changed = copy.deepcopy(self._routes)
        *_, pool = changed["pools"].values()
        gone = pool["engines"].pop().rpartition(":")[2]
        invalid = {**changed, "routes": {"text": {"pools": ["no such pool"]}}}
        for pod in self._pods:
            self._mount(pod.name, changed)
            await self._until(pod, "ocr_gateway_config_reloads_total 1.0")
            await self._until(pod, f'ocr_gateway_engine_up{{engine="127.0.0.1:{gone}"', absent=True)
            self._mount(pod.name, invalid)
            await self._until(pod, "ocr_gateway_config_reload_failures_total 1.0")
            self._mount(pod.name, changed)
            await self._until(pod, "ocr_gateway_config_reloads_total 2.0")
            self.report.reloads += 1
            self._say(f"{pod.name} took the ConfigMap's change over, and refused an invalid one")
        self._routes = changed

    async def _until(self, pod: Pod, series: str, *, absent: bool = False) -> None:
        """Wait until a gateway's metrics show something, or do not any more."""
        end = time.monotonic() + _RELOADED_S
        url = admin_url(self._placed[pod.name])
        async with httpx.AsyncClient(base_url=url, timeout=_RELOADED_S, trust_env=False) as http:
            while True:
                if (series in (await http.get("/metrics")).text) is not absent:
                    return
                if time.monotonic() > end:
                    raise PodError(f"{pod.name} does not show {series!r} after {_RELOADED_S} s")
                await asyncio.sleep(_LOOK_S)

    async def _update(self) -> None:
        """Replace each gateway as the Deployment does: one more, and when it is available, one less.

        A Deployment does not wait for the end of what terminates before it goes on.
        """
        ending = []
        for old in list(self._pods):
            began = time.monotonic()
            new = await self._start()
            await new.wait_ready(_START_S)
            self._say(f"{new.name} is ready after {time.monotonic() - began:.1f} s")
            await asyncio.sleep(self._lifecycle.min_ready_s)
            self._say(f"{old.name} terminates")
            ending.append(asyncio.create_task(self._end(old)))
        await asyncio.gather(*ending)

    async def _end(self, pod: Pod) -> None:
        ended = self.report.ended[pod.name] = await pod.terminate()
        self._say(f"{pod.name} {ended}")


async def rehearse(options: Options, say: Callable[[str], None]) -> Report:
    """Rehearse in a temporary folder.

    Raises:
        PodError: as Rehearsal's.
    """
    with tempfile.TemporaryDirectory() as folder:
        return await Rehearsal(options, Path(folder), say).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse and print; return 0 where nothing was lost and every gateway ended well."""
    parser = common.parser("gateway", __doc__)
    parser.add_argument("--replicas", type=int, default=Options.replicas, help="gateways; default: 2")
    parser.add_argument(
        "--mode", choices=MODES, default=Options.mode, help="what is balanced; default: connections"
    )
    parser.add_argument("--abrupt", action="store_true", help="kill gateways, to see that losses are seen")
    options = Options(**vars(parser.parse_args(arguments)))
    say(f"{options.clients} clients, {options.replicas} gateways, pace {options.pace:g}; simulated engines")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(rehearse(options, say))
    say(f"it took {report.took_s:.0f} s")
    return conclude(report.tally, report.faults(options))
