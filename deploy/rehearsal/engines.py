"""`python -m deploy.rehearsal engines`: engines are replaced, taken away, added and lost, under load.

A gateway runs before two simulated engines a pool. Probes, preStop, grace, minReadySeconds and
--shutdown-timeout are those of the production overlay's StatefulSets, and the names those of its routes.yaml,
which a resolver with a cache answers. Engines get new addresses, as pods do. A failed request makes it exit
with status 1; but streams of an engine that was lost without notice may end with an error event.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.serving import free_port
from deploy.rehearsal import common
from deploy.rehearsal.common import FILE, GATEWAY, PROPAGATION_S, admin_url, depth_of, simulated_engine
from deploy.rehearsal.names import publish
from deploy.rehearsal.pods import Endpoints, Lifecycle, Pod, find

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from deploy.rehearsal.clients import Clients

REPLICAS = 2
# Long answers outlast an engine's preStop, at the 30 to 40 tokens/s that a request then has.
LONG_TOKENS = 3000
# What an answer of a cluster's DNS may be old: kubeadm's CoreDNS has `ttl 30` and `cache 30`.
CACHE_S = 30.0
# A model's loading, in which an engine listens to nobody.
LOADING_S = 20.0
# From a node's death to its pods' leaving the endpoints (--node-monitor-grace-period).
NODE_S = 40.0
# The phase in which streams may break, and how clients see that.
LOSS, BROKEN = "an engine is killed without notice", "an error event"
_START_S = 120
# An engine of the first pool gets so many of a rehearsal's requests before the last pool gets any.
_SHARES = 8


@dataclass(frozen=True)
class EnginesOptions(common.Options):
    """What is rehearsed; `pace` also multiplies polling.resolve_s, but neither grace nor --shutdown-timeout.

    Only a machine that is too slow would need these two.

    Attributes:
        pre_stop: seconds of preStop in place of the manifest's, before `pace`.
        phases: the numbers of those that are played; all where there are none.
    """

    pre_stop: float | None = None
    phases: Sequence[int] = ()


@dataclass
class Phase:
    """One part of a rehearsal: what was done, and how many requests were answered and failed meanwhile."""

    what: str
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0

    @property
    def lost(self) -> int:
        """Requests that failed, but for streams that nobody could have saved."""
        return self.failures.total() - (self.failures[BROKEN] if self.what == LOSS else 0)


@dataclass
class EnginesReport(common.Report):
    """What came of a rehearsal.

    Attributes:
        phases: one after the other.
        served: answers, by pool.
    """

    phases: list[Phase] = field(default_factory=list)
    served: dict[str, float] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Return what was not as it should be."""
        found = [f"{phase.lost} requests failed while {phase.what}" for phase in self.phases if phase.lost]
        found += [f"pool {pool} has served nobody" for pool, count in self.served.items() if not count]
        return found + super().faults()


class Addresses:
    """Gives out addresses of the loopback interface, none twice; all engines have one port.

    The addresses begin at a random place, so that rehearsals at the same time do not meet.
    """

    def __init__(self) -> None:
        """Start with the first."""
        self.port = free_port()
        self._block = random.SystemRandom().randrange(1, 255)
        self._numbers = itertools.count()

    def next(self) -> str:
        """Return a new address."""
        number = next(self._numbers)
        return f"127.{self._block}.{1 + number // 250}.{1 + number % 250}"


class Pool:
    """One pool's StatefulSet and its headless Service."""

    def __init__(
        self,
        name: str,
        stateful_set: Mapping[str, Any],
        options: EnginesOptions,
        addresses: Addresses,
        publish: Callable[[frozenset[str]], None],
        end: Callable[[Pod], Awaitable[None]],
    ) -> None:
        """Read the manifest.

        Args:
            name: the StatefulSet's.
            stateful_set: its manifest.
            options: what is rehearsed.
            addresses: gives its pods theirs.
            publish: called with the Service's addresses as DNS comes to know them.
            end: terminates a pod.
        """
        self.name = name
        self._pace = options.pace
        self._addresses = addresses
        self._end = end
        lifecycle = Lifecycle.of(stateful_set, options.pace)
        lifecycle = replace(lifecycle, grace_s=Lifecycle.of(stateful_set).grace_s)
        if options.pre_stop is not None:
            lifecycle = replace(lifecycle, pre_stop_s=options.pace * options.pre_stop)
        self._lifecycle = lifecycle.without_warning() if options.abrupt else lifecycle
        self._flags = _flags(stateful_set["spec"]["template"]["spec"]["containers"][0]["args"])
        self._endpoints = Endpoints(
            PROPAGATION_S * options.pace,
            lambda urls: publish(frozenset(urlsplit(url).hostname or "" for url in urls)),
        )
        self._pods: list[Pod] = []

    async def scale(self, replicas: int, loading_s: float = LOADING_S) -> None:
        """Add pods, or take those with the highest ordinals away, all at once."""
        gone, self._pods = self._pods[replicas:], self._pods[:replicas]
        await asyncio.gather(*(self._end(pod) for pod in gone))
        more = range(len(self._pods), replicas)
        self._pods += [self._pod(ordinal, self._addresses.next(), loading_s) for ordinal in more]
        await asyncio.gather(*(self._ready(self._pods[ordinal]) for ordinal in more))

    async def update(self, *, keep_addresses: bool = False) -> None:
        """Replace every pod, the highest ordinal first, and let each be ready for long enough."""
        for ordinal in reversed(range(len(self._pods))):
            old = self._pods[ordinal]
            await self._end(old)
            address = urlsplit(old.url).hostname if keep_addresses else None
            await self._replace(ordinal, address or self._addresses.next())
            await asyncio.sleep(self._lifecycle.min_ready_s)

    async def lose(self, ordinal: int) -> None:
        """Kill a pod, and replace it once the cluster has noticed."""
        lost = self._pods[ordinal]
        await lost.kill()
        await asyncio.sleep(NODE_S * self._pace)
        self._endpoints.set(lost.url, False)
        await self._replace(ordinal, self._addresses.next())
        await asyncio.sleep(self._lifecycle.min_ready_s)

    async def kill(self) -> None:
        """Kill every pod."""
        await asyncio.gather(*(pod.kill() for pod in self._pods))

    async def _replace(self, ordinal: int, address: str) -> None:
        self._pods[ordinal] = self._pod(ordinal, address, LOADING_S)
        await self._ready(self._pods[ordinal])

    async def _ready(self, pod: Pod) -> None:
        await pod.start()
        await pod.wait_ready(_START_S + LOADING_S * self._pace)

    def _pod(self, ordinal: int, address: str, loading_s: float) -> Pod:
        port = self._addresses.port
        engine = simulated_engine(
            host=address,
            port=port,
            depth=depth_of({"speculative_config": json.loads(self._flags.get("speculative-config", "{}"))}),
            model=self._flags["served-model-name"],
            shutdown_timeout=float(self._flags["shutdown-timeout"]),
            seed=ordinal,
        )
        return Pod(
            f"{self.name}-{ordinal} at {address}",
            ["sh", "-c", 'sleep "$0"; exec "$@"', str(self._pace * loading_s), *engine],
            f"http://{address}:{port}",
            self._lifecycle,
            lambda pod, ready: self._endpoints.set(pod.url, ready),
        )


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """What of a command line is `--name value`."""
    return {
        name.removeprefix("--"): value
        for name, value in itertools.pairwise(arguments)
        if name.startswith("--") and not value.startswith("--")
    }


class EnginesRehearsal(common.Rehearsal[EnginesOptions, EnginesReport]):
    """A gateway, its pools, their names, and clients."""

    def __init__(self, options: EnginesOptions, folder: Path, say: common.Say) -> None:
        """Prepare as every rehearsal does."""
        super().__init__(options, EnginesReport(options), folder, say)
        self.routes = self.placed()
        self.routes["polling"]["resolve_s"] *= options.pace
        # So that all pools have work: by the overlay's own schedule so few clients would leave some idle.
        first, *_, last = (depth_of(pool) for pool in self.routes["pools"].values())
        share = max(1, options.clients // _SHARES)
        for route in self.routes["routes"].values():
            route["schedule"] = [[1, share, first], [share + 1, 4096, last]]
        self._addresses = Addresses()
        self._known: dict[str, frozenset[str]] = {}
        self._records = folder / "names.json"
        self._pools = {name: self._pool(pool) for name, pool in self.routes["pools"].items()}

    async def run(self) -> None:
        """Rehearse.

        Raises:
            PodError: an engine or the gateway did not start.
        """
        gateway = self._gateway()
        try:
            await asyncio.gather(*(pool.scale(REPLICAS, loading_s=0) for pool in self._pools.values()))
            await asyncio.sleep(PROPAGATION_S * self.options.pace)
            await gateway.start()
            await gateway.wait_ready(_START_S)
            # The clients' own pace is as in a cluster: no gateway stops here.
            async with self.clients(gateway.url, LONG_TOKENS, 1.0) as clients:
                await self._play(clients)
            self.report.served = {pool: await _served(admin_url(self.routes), pool) for pool in self._pools}
        finally:
            await asyncio.gather(gateway.kill(), *(pool.kill() for pool in self._pools.values()))

    async def _play(self, clients: Clients) -> None:
        first, *_, last = self._pools.values()

        async def update() -> None:
            await asyncio.gather(first.update(), last.update(keep_addresses=True))

        phases: list[tuple[str, Callable[[], Any]]] = [
            ("both pools are updated, one to new addresses, one at its own", update),
            ("a pool is scaled down to one engine", lambda: last.scale(1)),
            ("that one, all that its name has, is replaced", last.update),
            ("the pool is scaled up again", lambda: last.scale(REPLICAS)),
            (LOSS, lambda: last.lose(0)),
        ]
        await clients.answered(self.options.clients)
        for number, (what, play) in enumerate(phases, 1):
            if self.options.phases and number not in self.options.phases:
                continue
            phase = Phase(what)
            self.report.phases.append(phase)
            answered, failed, began = clients.tally.answered, len(clients.tally.failures), time.monotonic()
            await play()
            await clients.answered(self.options.clients)
            phase.took_s = time.monotonic() - began
            phase.answered = clients.tally.answered - answered
            phase.failures.update(failure.reason for failure in clients.tally.failures[failed:])
            self.say(
                f"while {what}: {phase.answered} requests answered, {phase.lost} failed, "
                f"{phase.failures.total() - phase.lost} streams broken, in {phase.took_s:.0f} s"
            )

    def _pool(self, pool: dict[str, Any]) -> Pool:
        """The StatefulSet behind a pool of routes.yaml, by the host that its one entry names."""
        (entry,) = pool["engines"]
        host = urlsplit(entry.removeprefix("dns+")).hostname or ""
        pool["engines"] = [f"dns+http://{host}:{self._addresses.port}"]

        def known(addresses: frozenset[str]) -> None:
            self._known[host] = addresses
            publish(self._records, self._known)
            self.say(f"DNS: {host} has {', '.join(sorted(addresses)) or 'no address'}")

        manifest = find(self.objects, "StatefulSet", host)
        return Pool(host, manifest, self.options, self._addresses, known, self.end)

    def _gateway(self) -> Pod:
        mounted, port = self.mount("routes", self.routes), free_port()
        cache_s = str(CACHE_S * self.options.pace)
        command = [sys.executable, "-m", "deploy.rehearsal.names", str(self._records), cache_s, "serve"]
        command += [f"--config={mounted / FILE}", "--host=127.0.0.1", f"--port={port}"]
        return Pod(GATEWAY, command, f"http://127.0.0.1:{port}", self.lifecycle, lambda *_: None)


async def _served(url: str, pool: str) -> float:
    async with httpx.AsyncClient(trust_env=False) as http:
        page = (await http.get(f"{url}/metrics")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "ocr_gateway_requests_total"
        and (sample.labels["pool"], sample.labels["code"]) == (pool, "200")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse and print; return 0 where nothing was lost and every engine ended well."""
    parser = common.parser("engines", __doc__)
    parser.add_argument(
        "--pre-stop", type=float, metavar="S", help="in place of the manifest's, before --pace"
    )
    parser.add_argument(
        "--phases", type=int, nargs="*", default=(), metavar="N", help="play only these, 1 to 5"
    )
    return common.play(EnginesRehearsal, EnginesOptions(**vars(parser.parse_args(arguments))))
