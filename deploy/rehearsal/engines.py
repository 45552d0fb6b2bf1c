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
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import uvloop
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.rehearsal import common
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
from deploy.rehearsal.names import publish
from deploy.rehearsal.pods import (
    Ended,
    Endpoints,
    Lifecycle,
    Pod,
    find,
    free_port,
    mount,
    rendered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
# `ocr-gateway simulated-engine` without the imports of the other commands, which are most of its start.
_ENGINE = """
import json, sys
from gateway.engines.simulated import simulated_server, step_model
simulated_server.main(step_model.Fit.builtin("h100-9b"), **json.loads(sys.argv[1]))
"""


@dataclass(frozen=True)
class Options:
    """What is rehearsed.

    Attributes:
        clients: how many ask at once.
        pace: all times of the manifests, of the cluster, and of polling.resolve_s are multiplied by this; but
            not grace and --shutdown-timeout, which only a machine that is too slow would need.
        pre_stop: seconds of preStop in place of the manifest's, before `pace`.
        abrupt: engines are killed instead of terminated: requests are lost, and the rehearsal says so.
        phases: the numbers of those that are played; all where there are none.
    """

    clients: int = CLIENTS
    pace: float = 1.0
    pre_stop: float | None = None
    abrupt: bool = False
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
class Report:
    """What came of a rehearsal.

    Attributes:
        phases: one after the other.
        tally: the clients'.
        ended: how each engine that was terminated ended, by name and address.
        served: answers, by pool.
    """

    phases: list[Phase] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    ended: list[tuple[str, Ended]] = field(default_factory=list)
    served: dict[str, float] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Return what was not as it should be."""
        found = [f"{phase.lost} requests failed while {phase.what}" for phase in self.phases if phase.lost]
        found += [f"pool {pool} has served nobody" for pool, count in self.served.items() if not count]
        return found + [f"{name} {ended.fault}" for name, ended in self.ended if ended.fault]


class Addresses:
    """Gives out addresses of the loopback interface, none twice; all engines have one port."""

    def __init__(self) -> None:
        """Start with the first."""
        self.port = free_port()
        self._numbers = itertools.count(2)

    def next(self) -> str:
        """Return a new address."""
        number = next(self._numbers)
        return f"127.0.{1 + number // 250}.{1 + number % 250}"


class Pool:
    """One pool's StatefulSet and its headless Service."""

    def __init__(
        self,
        name: str,
        stateful_set: Mapping[str, Any],
        options: Options,
        addresses: Addresses,
        told: Callable[[frozenset[str]], None],
        ended: Callable[[str, Ended], None],
    ) -> None:
        """Read the manifest.

        Args:
            name: the StatefulSet's.
            stateful_set: its manifest.
            options: what is rehearsed.
            addresses: gives its pods theirs.
            told: hears of the Service's addresses as DNS comes to know them.
            ended: hears how a pod ended.
        """
        self.name = name
        self._pace = options.pace
        self._addresses = addresses
        self._ended = ended
        lifecycle = Lifecycle.of(stateful_set, options.pace)
        lifecycle = replace(lifecycle, grace_s=Lifecycle.of(stateful_set).grace_s)
        if options.pre_stop is not None:
            lifecycle = replace(lifecycle, pre_stop_s=options.pace * options.pre_stop)
        self._lifecycle = lifecycle.without_warning() if options.abrupt else lifecycle
        self._flags = _flags(stateful_set["spec"]["template"]["spec"]["containers"][0]["args"])
        self._endpoints = Endpoints(
            PROPAGATION_S * options.pace,
            lambda urls: told(frozenset(urlsplit(url).hostname or "" for url in urls)),
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

    async def _end(self, pod: Pod) -> None:
        self._ended(pod.name, await pod.terminate())

    async def _replace(self, ordinal: int, address: str) -> None:
        self._pods[ordinal] = self._pod(ordinal, address, LOADING_S)
        await self._ready(self._pods[ordinal])

    async def _ready(self, pod: Pod) -> None:
        await pod.start()
        await pod.wait_ready(_START_S + LOADING_S * self._pace)

    def _pod(self, ordinal: int, address: str, loading_s: float) -> Pod:
        speculative = {"speculative_config": json.loads(self._flags.get("speculative-config", "{}"))}
        options = {
            "host": address,
            "port": self._addresses.port,
            "depth": _depth(speculative),
            "model": self._flags["served-model-name"],
            "shutdown_timeout": float(self._flags["shutdown-timeout"]),
            "seed": ordinal,
        }
        engine = [sys.executable, "-c", _ENGINE, json.dumps(options)]
        command = ["sh", "-c", 'sleep "$0"; exec "$@"', str(self._pace * loading_s), *engine]
        url = f"http://{address}:{self._addresses.port}"
        return Pod(
            f"{self.name}-{ordinal} at {address}",
            command,
            url,
            self._lifecycle,
            lambda pod, ready: self._endpoints.set(pod.url, ready),
        )


def _depth(pool: Mapping[str, Any]) -> int:
    """The draft tokens of a pool in routes.yaml."""
    return int(pool.get("speculative_config", {}).get("num_speculative_tokens", 0))


def _flags(arguments: Sequence[str]) -> dict[str, str]:
    """What of a command line is `--name value`."""
    return {
        name.removeprefix("--"): value
        for name, value in itertools.pairwise(arguments)
        if name.startswith("--") and not value.startswith("--")
    }


class Rehearsal:
    """A gateway, its pools, their names, and clients."""

    def __init__(self, options: Options, folder: Path, say: Callable[[str], None]) -> None:
        """Read the overlay.

        Args:
            options: what is rehearsed.
            folder: where the ConfigMap is mounted.
            say: hears of progress.
        """
        objects = rendered(OVERLAY)
        self._options = options
        self._folder = folder
        self._say = say
        self._lifecycle = Lifecycle.of(find(objects, "Deployment", GATEWAY), options.pace)
        self._map = dict(find(objects, "ConfigMap", CONFIG_MAP)["data"])
        self._routes = placed(yaml.safe_load(self._map[FILE]), folder)
        self._routes["polling"]["resolve_s"] *= options.pace
        # So that all pools have work: by the overlay's own schedule so few clients would leave some idle.
        first, *_, last = (_depth(pool) for pool in self._routes["pools"].values())
        share = max(1, options.clients // _SHARES)
        for route in self._routes["routes"].values():
            route["schedule"] = [[1, share, first], [share + 1, 4096, last]]
        self._addresses = Addresses()
        self._known: dict[str, frozenset[str]] = {}
        self._pools = {name: self._pool(name, objects) for name in self._routes["pools"]}
        self.report = Report()

    async def run(self) -> Report:
        """Rehearse, and return what came of it.

        Raises:
            PodError: an engine or the gateway did not start.
        """
        options = self._options
        gateway = self._gateway()
        try:
            await asyncio.gather(*(pool.scale(REPLICAS, loading_s=0) for pool in self._pools.values()))
            await asyncio.sleep(PROPAGATION_S * options.pace)
            await gateway.start()
            await gateway.wait_ready(_START_S)
            clients = Clients(
                gateway.url,
                self._routes["model"],
                options.clients,
                key=KEY,
                tokens=TOKENS,
                long_tokens=max(2 * TOKENS, round(LONG_TOKENS * options.pace)),
                pace=1.0,  # no gateway stops here
            )
            self.report.tally = clients.tally
            async with clients:
                await self._play(clients)
            self.report.served = {pool: await _served(admin_url(self._routes), pool) for pool in self._pools}
        finally:
            await asyncio.gather(gateway.kill(), *(pool.kill() for pool in self._pools.values()))
        return self.report

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
        await clients.answered(self._options.clients)
        for number, (what, play) in enumerate(phases, 1):
            if self._options.phases and number not in self._options.phases:
                continue
            phase = Phase(what)
            self.report.phases.append(phase)
            answered, failed, began = clients.tally.answered, len(clients.tally.failures), time.monotonic()
            await play()
            await clients.answered(self._options.clients)
            phase.took_s = time.monotonic() - began
            phase.answered = clients.tally.answered - answered
            phase.failures.update(failure.reason for failure in clients.tally.failures[failed:])
            self._say(
                f"while {what}: {phase.answered} requests answered, {phase.lost} failed, "
                f"{phase.failures.total() - phase.lost} streams broken, in {phase.took_s:.0f} s"
            )

    def _pool(self, name: str, objects: list[dict[str, Any]]) -> Pool:
        """The StatefulSet behind a pool of routes.yaml, by the host that its one entry names."""
        pool = self._routes["pools"][name]
        (entry,) = pool["engines"]
        host = urlsplit(entry.removeprefix("dns+")).hostname or ""
        pool["engines"] = [f"dns+http://{host}:{self._addresses.port}"]
        manifest = find(objects, "StatefulSet", host)
        return Pool(
            host, manifest, self._options, self._addresses, lambda found: self._tell(host, found), self._note
        )

    def _tell(self, host: str, addresses: frozenset[str]) -> None:
        self._known[host] = addresses
        publish(self._records, self._known)
        self._say(f"DNS: {host} has {', '.join(sorted(addresses)) or 'no address'}")

    def _note(self, name: str, ended: Ended) -> None:
        self.report.ended.append((name, ended))
        self._say(f"{name} {ended}")

    @property
    def _records(self) -> Path:
        return self._folder / "names.json"

    def _gateway(self) -> Pod:
        mounted = self._folder / "routes"
        mount(mounted, {**self._map, FILE: yaml.safe_dump(self._routes)})
        port = free_port()
        cache_s = str(CACHE_S * self._options.pace)
        command = [sys.executable, "-m", "deploy.rehearsal.names", str(self._records), cache_s, "serve"]
        command += [f"--config={mounted / FILE}", "--host=127.0.0.1", f"--port={port}"]
        return Pod(GATEWAY, command, f"http://127.0.0.1:{port}", self._lifecycle, lambda *_: None)


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


async def rehearse(options: Options, say: Callable[[str], None]) -> Report:
    """Rehearse in a temporary folder.

    Raises:
        PodError: as Rehearsal's.
    """
    with tempfile.TemporaryDirectory() as folder:
        return await Rehearsal(options, Path(folder), say).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse and print; return 0 where nothing was lost and every engine ended well."""
    parser = common.parser("engines", __doc__)
    parser.add_argument(
        "--pre-stop", type=float, metavar="S", help="in place of the manifest's, before --pace"
    )
    parser.add_argument("--abrupt", action="store_true", help="kill engines, to see that losses are seen")
    parser.add_argument(
        "--phases", type=int, nargs="*", default=(), metavar="N", help="play only these, 1 to 5"
    )
    options = Options(**vars(parser.parse_args(arguments)))
    say(f"{options.clients} clients, pace {options.pace:g}; simulated engines")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(rehearse(options, say))
    return conclude(report.tally, report.faults())
