"""What rehearsals have in common: the production overlay, its load, what came of it, and the command."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import uvloop
import yaml

from bench.serving import free_port
from deploy.checks.render import render
from deploy.rehearsal.clients import Clients, Tally
from deploy.rehearsal.pods import ROOT, Ended, Lifecycle, Pod, find, mount

if TYPE_CHECKING:
    from collections.abc import Mapping

OVERLAY = ROOT / "deploy/kubernetes/overlays/production"
GATEWAY, CONFIG_MAP, FILE = "ocr-gateway", "ocr-gateway-routes", "routes.yaml"
CLIENTS, TOKENS = 64, 60
# From a pod's termination to the last balancer or DNS server that knows: some seconds in a busy cluster.
PROPAGATION_S = 3.0
# What clients show; nobody else's.
KEY = "a-key-of-this-rehearsal-alone"
_SHOWN = 20
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
        pace: multiplies the times of the manifests and of the cluster.
        abrupt: pods are killed instead of terminated: requests are lost, and the rehearsal finds it.
    """

    clients: int = CLIENTS
    pace: float = 1.0
    abrupt: bool = False


@dataclass
class Report:
    """What came of a rehearsal.

    Attributes:
        options: what was rehearsed.
        tally: the clients'.
        ended: how each pod that was replaced or taken away ended, with its name.
    """

    options: Options
    tally: Tally = field(default_factory=Tally)
    ended: list[tuple[str, Ended]] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Return what was not as it should be."""
        return [f"{name} {ended.fault}" for name, ended in self.ended if ended.fault]


OptionsT = TypeVar("OptionsT", bound=Options)
ReportT = TypeVar("ReportT", bound=Report)


# Called with a line of progress.
Say = Callable[[str], None]


class Rehearsal(ABC, Generic[OptionsT, ReportT]):
    """The production overlay, played with processes in the place of pods."""

    def __init__(self, options: OptionsT, report: ReportT, folder: Path, say: Say) -> None:
        """Read the overlay.

        Args:
            options: what is rehearsed.
            report: what came of it is written there.
            folder: where ConfigMaps are mounted.
            say: called with progress.
        """
        self.options = options
        self.report = report
        self.folder = folder
        self.say = say
        self.objects = render(OVERLAY)
        self.deployment = find(self.objects, "Deployment", GATEWAY)
        self.lifecycle = Lifecycle.of(self.deployment, options.pace)
        self.data = dict(find(self.objects, "ConfigMap", CONFIG_MAP)["data"])
        self.routes: dict[str, Any] = yaml.safe_load(self.data[FILE])

    @abstractmethod
    async def run(self) -> None:
        """Rehearse.

        Raises:
            PodError: a pod did not do what is taken for granted, such as start.
        """

    def clients(self, url: str, long_tokens: int, pace: float) -> Clients:
        """Return the load on a gateway or balancer, whose tally is the report's."""
        clients = Clients(
            url,
            self.routes["model"],
            self.options.clients,
            key=KEY,
            tokens=TOKENS,
            long_tokens=max(2 * TOKENS, round(long_tokens * self.options.pace)),
            pace=pace,
        )
        self.report.tally = clients.tally
        return clients

    def placed(self) -> dict[str, Any]:
        """Return a gateway's configuration with its keys on this machine, and an admin port of its own."""
        mount(self.folder / "keys", {"keys": f"rehearsal {KEY}\n"})
        auth = {**self.routes["auth"], "keys_file": str(self.folder / "keys" / "keys")}
        return {**self.routes, "auth": auth, "server": {**self.routes["server"], "admin_port": free_port()}}

    def mount(self, name: str, routes: Mapping[str, Any]) -> Path:
        """Mount the ConfigMap with another routes.yaml; return its folder."""
        mount(self.folder / name, {**self.data, FILE: yaml.safe_dump(dict(routes))})
        return self.folder / name

    async def end(self, pod: Pod) -> None:
        """Terminate a pod, and report how it ended."""
        ended = await pod.terminate()
        self.report.ended.append((pod.name, ended))
        self.say(f"{pod.name} {ended}")


_Kind = Callable[[OptionsT, Path, Say], Rehearsal[OptionsT, ReportT]]


def simulated_engine(**options: Any) -> list[str]:
    """Return the command of a simulated engine; options as in gateway.engines.simulated."""
    return [sys.executable, "-c", _ENGINE, json.dumps(options)]


def depth_of(pool: Mapping[str, Any]) -> int:
    """Return the draft tokens of a pool in routes.yaml."""
    return int(pool.get("speculative_config", {}).get("num_speculative_tokens", 0))


def admin_url(routes: Mapping[str, Any]) -> str:
    """Return where the metrics of a gateway with this configuration are."""
    return f"http://127.0.0.1:{routes['server']['admin_port']}"


async def rehearse(kind: _Kind[OptionsT, ReportT], options: OptionsT, say: Say) -> ReportT:
    """Rehearse in a temporary folder; return what came of it.

    Raises:
        PodError: as Rehearsal.run.
    """
    with tempfile.TemporaryDirectory() as folder:
        rehearsal = kind(options, Path(folder), say)
        await rehearsal.run()
        return rehearsal.report


def parser(what: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options that every rehearsal has."""
    found = argparse.ArgumentParser(prog=f"python -m deploy.rehearsal {what}", description=description)
    found.add_argument("--clients", type=int, default=CLIENTS, help=f"requests at once; default: {CLIENTS}")
    found.add_argument("--pace", type=float, default=1.0, help="0.2: all times a fifth; default: 1")
    found.add_argument("--abrupt", action="store_true", help="kill pods, to see that losses are found")
    return found


def say(line: str) -> None:
    """Print a line of progress at once, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def play(kind: _Kind[OptionsT, ReportT], options: OptionsT) -> int:
    """Rehearse and print what came of it; return the exit status, 0 where there are no faults."""
    say(f"{options.clients} clients, pace {options.pace:g}; simulated engines")
    began = time.monotonic()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(rehearse(kind, options, say))
    say(f"it took {time.monotonic() - began:.0f} s")
    tally, faults = report.tally, report.faults()
    for failure in tally.failures[:_SHOWN]:
        say(f"failed at {failure.at_s:.2f} s: client {failure.client}: {failure.reason}")
    say(
        f"{tally.answered} requests answered ({tally.streamed} streamed), {len(tally.failures)} failed; "
        f"longest time without an answer {tally.longest_gap_s:.2f} s (simulated engines)"
    )
    for fault in faults:
        say(fault)
    return int(bool(faults))
