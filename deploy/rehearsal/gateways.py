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
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from bench.serving import free_port
from deploy.rehearsal import common
from deploy.rehearsal.balancer import MODES, Balancer, Mode
from deploy.rehearsal.common import GATEWAY, PROPAGATION_S, admin_url, depth_of, simulated_engine
from deploy.rehearsal.pods import ROOT, Endpoints, Pod, PodError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

# Long answers outlast preStop and linger together, at the 30 to 40 tokens/s that a request then has.
LONG_TOKENS = 1200
_START_S = 180
# A machine too busy for all these processes is not what is rehearsed.
_CONNECT_S = 30
_RELOADED_S = 120
_LOOK_S = 0.1


@dataclass(frozen=True)
class GatewaysOptions(common.Options):
    """What is rehearsed; `pace` also multiplies linger_s and drain_s, `abrupt` changes no configuration.

    Attributes:
        replicas: how many gateways there are.
        mode: what the balancer balances.
    """

    replicas: int = 2
    mode: Mode = "connections"


@dataclass
class GatewaysReport(common.Report):
    """What came of a rehearsal.

    Attributes:
        reloads: gateways that took the ConfigMap's change over, and refused its invalid one.
    """

    options: GatewaysOptions
    reloads: int = 0

    def faults(self) -> list[str]:
        """Return what was not as it should be."""
        replicas = self.options.replicas
        found = [f"{number} requests failed: {reason}" for reason, number in self.tally.reasons.items()]
        if len(self.ended) != replicas:
            found.append(f"{len(self.ended)} of {replicas} gateways were replaced")
        if self.reloads != replicas and not self.options.abrupt:
            found.append(f"{self.reloads} of {replicas} gateways took the ConfigMap's change over")
        return found + super().faults()


class GatewaysRehearsal(common.Rehearsal[GatewaysOptions, GatewaysReport]):
    """A Deployment of gateways with its Service and ConfigMap."""

    def __init__(self, options: GatewaysOptions, folder: Path, say: common.Say) -> None:
        """Prepare as every rehearsal does.

        Raises:
            PodError: the Deployment's strategy is not the one that is rehearsed.
        """
        super().__init__(options, GatewaysReport(options), folder, say)
        rolling = self.deployment["spec"]["strategy"]["rollingUpdate"]
        if (rolling["maxSurge"], rolling["maxUnavailable"]) != (1, 0):
            raise PodError(f"maxSurge 1 and maxUnavailable 0 are rehearsed, not {rolling}")
        if options.abrupt:
            self.lifecycle = self.lifecycle.without_warning()
        for limit in ("linger_s", "drain_s"):
            self.routes["server"][limit] *= options.pace
        for route in self.routes["routes"].values():
            route.setdefault("timeouts", {})["connect_s"] = _CONNECT_S
        self._container: Mapping[str, Any] = self.deployment["spec"]["template"]["spec"]["containers"][0]
        self._pods: list[Pod] = []
        self._placed: dict[str, dict[str, Any]] = {}
        self._endpoints = Endpoints(0, lambda _: None)

    async def run(self) -> None:
        """Rehearse.

        Raises:
            PodError: a gateway did not start, or did not take a ConfigMap's change over.
        """
        options = self.options
        with self._engines():
            async with Balancer(options.mode) as balancer:
                self._endpoints = Endpoints(PROPAGATION_S * options.pace, balancer.set)
                async with self._gateways():
                    await asyncio.sleep(PROPAGATION_S * options.pace)
                    async with self.clients(balancer.url, LONG_TOKENS, options.pace) as clients:
                        await clients.answered(options.clients)
                        if not options.abrupt:
                            await self._change_config()
                            await clients.answered(options.clients)
                        await self._update()
                        await clients.answered(options.clients)

    @contextlib.contextmanager
    def _engines(self) -> Iterator[None]:
        """Run simulated engines, one a pool and another in the last, and have the configuration name them."""
        processes: list[subprocess.Popen[bytes]] = []
        pools = list(self.routes["pools"].values())
        for pool in pools:
            ports = [free_port() for _ in range(2 if pool is pools[-1] else 1)]
            pool["engines"] = [f"dns+http://localhost:{port}" for port in ports]
            for port in ports:
                command = simulated_engine(
                    port=port, depth=depth_of(pool), seed=len(processes), model=self.routes["model"]
                )
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
            pods = [await self._start() for _ in range(self.options.replicas)]
            await asyncio.gather(*(pod.wait_ready(_START_S) for pod in pods))
            yield
        finally:
            await asyncio.gather(*(pod.kill() for pod in self._pods))

    async def _start(self) -> Pod:
        """Start a gateway with the container's own arguments, but for its folder and its address."""
        name, port = f"{GATEWAY}-{len(self._pods) + 1}", free_port()
        self._placed[name] = self.placed()
        mounted = self._place(name, self.routes)
        (path,) = (
            mount["mountPath"] for mount in self._container["volumeMounts"] if mount["name"] == "routes"
        )
        arguments = [argument.replace(path, str(mounted)) for argument in self._container["args"]]
        pod = Pod(
            name,
            [sys.executable, "-m", "gateway.cli", *arguments, "--host=127.0.0.1", f"--port={port}"],
            f"http://127.0.0.1:{port}",
            self.lifecycle,
            self._readiness,
            {one["name"]: one.get("value", "rehearsal") for one in self._container.get("env", ())},
        )
        self._pods.append(pod)
        await pod.start()
        return pod

    def _readiness(self, pod: Pod, ready: bool) -> None:
        self._endpoints.set(pod.url, ready)
        if not ready and not pod.terminating:
            self.say(f"{pod.name} does not answer its readiness probe")

    def _place(self, name: str, routes: Mapping[str, Any]) -> Path:
        """Mount a gateway's ConfigMap with its own keys and ports; return its folder."""
        own = {key: self._placed[name][key] for key in ("auth", "server")}
        return self.mount(name, {**routes, **own})

    async def _change_config(self) -> None:
        """Bring a change, an invalid one and a valid one to each gateway in turn, as kubelets would."""
        changed = copy.deepcopy(self.routes)
        *_, pool = changed["pools"].values()
        gone = pool["engines"].pop().rpartition(":")[2]
        invalid = {**changed, "routes": {"text": {"pools": ["no such pool"]}}}
        for pod in self._pods:
            self._place(pod.name, changed)
            await self._until(pod, "ocr_gateway_config_reloads_total 1.0")
            await self._until(pod, f'ocr_gateway_engine_up{{engine="127.0.0.1:{gone}"', absent=True)
            self._place(pod.name, invalid)
            await self._until(pod, "ocr_gateway_config_reload_failures_total 1.0")
            self._place(pod.name, changed)
            await self._until(pod, "ocr_gateway_config_reloads_total 2.0")
            self.report.reloads += 1
            self.say(f"{pod.name} took the ConfigMap's change over, and refused an invalid one")
        self.routes = changed

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
            self.say(f"{new.name} is ready after {time.monotonic() - began:.1f} s")
            await asyncio.sleep(self.lifecycle.min_ready_s)
            self.say(f"{old.name} terminates")
            ending.append(asyncio.create_task(self.end(old)))
        await asyncio.gather(*ending)


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse and print; return 0 where nothing was lost and every gateway ended well."""
    parser = common.parser("gateway", __doc__)
    parser.add_argument("--replicas", type=int, default=GatewaysOptions.replicas, help="gateways; default: 2")
    parser.add_argument(
        "--mode", choices=MODES, default=GatewaysOptions.mode, help="what is balanced; default: connections"
    )
    return common.play(GatewaysRehearsal, GatewaysOptions(**vars(parser.parse_args(arguments))))
