"""The configurations that containers are started with, read as `ocr-gateway check` reads them."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.checks.objects import at, namespace_of
from gateway.config import load
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Container, Document, Pod, Rendering
    from gateway.config import Config

ROUTES = "routes.yaml"
GRACE_S = 30  # Kubernetes' own terminationGracePeriodSeconds


@dataclass(frozen=True)
class Served:
    """A gateway's container with the configuration that is mounted into it."""

    pod: Pod
    container: Container
    config_map: Document
    config: Config

    @property
    def admin(self) -> set[str | int]:
        """What the admin port may be called: its number, and its name in the container."""
        number = self.config.server.admin_port
        names = (name for name, port in self.container.ports.items() if port == number)
        return set() if number is None else {number, *names}

    def services(self, rendering: Rendering) -> list[Document]:
        """Return the Services that lead to the gateway."""
        return [
            service
            for service in rendering.of("Service")
            if self.pod
            in rendering.selected({"matchLabels": at(service, "spec", "selector")}, namespace_of(service))
        ]

    @property
    def life_s(self) -> float:
        """How long the longest request may take: total_s begins when it has left the queue."""
        return max(route.queue.max_wait_s + route.timeouts.total_s for route in self.config.routes.values())

    @property
    def life_text(self) -> str:
        """The same, as a problem's text has it."""
        return f"a request may take {self.life_s:g} s (queue.max_wait_s + timeouts.total_s)"


@cache
def read(files: frozenset[tuple[str, str]], variables: frozenset[tuple[str, str]]) -> Config:
    """Validate a routes.yaml as `ocr-gateway check` does, among the files that are mounted with it.

    Raises:
        ConfigError: with every problem found.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
        try:
            config = load(folder / ROUTES, dict(variables), keys=False)
        except ConfigError as error:
            raise ConfigError([line.replace(f"{name}/", "") for line in str(error).splitlines()]) from None
    return config


def mounted(rendering: Rendering, config_map: Document) -> Iterator[tuple[Pod, Container, Document]]:
    """Yield where a ConfigMap is mounted: pod, container and mount."""
    for pod in rendering.pods:
        if pod.namespace != namespace_of(config_map):
            continue
        name = config_map["metadata"]["name"]
        volumes = {
            volume["name"]
            for volume in pod.spec.get("volumes") or ()
            if any(source.get("name") == name for source in _sources(volume))
        }
        for container in pod.containers:
            for mount in container.spec.get("volumeMounts") or ():
                if mount["name"] in volumes:
                    yield pod, container, mount


def _sources(volume: Document) -> list[Document]:
    """The ConfigMaps of a volume, with the keys and paths that are taken of them."""
    sources = [volume, *(at(volume, "projected", "sources") or ())]
    return [source["configMap"] for source in sources if "configMap" in source]


def files_of(rendering: Rendering, pod: Pod, name: str) -> dict[str, str]:
    """The files of a pod's volume, by their paths."""
    (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == name)
    files: dict[str, str] = {}
    for source in _sources(volume):
        data = at(rendering.find("ConfigMap", source.get("name"), pod.namespace) or {}, "data")
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        files |= {item["path"]: data[item["key"]] for item in items if item["key"] in data}
    return files


def option(words: list[str], name: str) -> str | None:
    """Return an option's value, written `--option=value` or `--option value`."""
    for word, following in itertools.zip_longest(words, words[1:]):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def variables_of(container: Container) -> dict[str, str]:
    """The container's environment: its values, and in place of a secret's where it is kept."""
    found = {}
    for name, variable in container.env.items():
        source = at(variable, "valueFrom", "secretKeyRef") or at(variable, "valueFrom", "configMapKeyRef")
        if source.get("optional"):
            continue
        found[name] = (
            f"{source.get('name')}/{source.get('key')}" if source else str(variable.get("value", ""))
        )
    return found


def secrets_of(container: Container) -> set[str]:
    """Where in secrets the container's environment comes from."""
    found = (at(variable, "valueFrom", "secretKeyRef") for variable in container.env.values())
    return {f"{source.get('name')}/{source.get('key')}" for source in found if source}


def pre_stop(container: Container) -> int:
    """Seconds that a container sleeps before SIGTERM; 0 where it does not."""
    return int(at(container.spec, "lifecycle", "preStop", "sleep", "seconds") or 0)
