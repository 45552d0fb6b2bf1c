"""Rendered objects: pods by their owners, selectors, and a problem with the place where it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Document = dict[str, Any]
# What is wrong in one object: where, as a path of keys, and the text.
Findings = Iterator[tuple[str, str]]

COMPONENT = "app.kubernetes.io/component"
POOL = "ocr-gateway/pool"
GATEWAY, ENGINE, SWEEP = "gateway", "engine", "sweep"

# Where each kind keeps its pods' template.
_TEMPLATES = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Pod": (),
}


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        name: of the object: `Kind/name`.
        where: in it, as a path of keys.
        text: what is wrong and what would be right.
    """

    name: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.where}: {self.text}"


def named(name: str, findings: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """Make problems of the findings in one object."""
    return (Problem(name, where, text) for where, text in findings)


@dataclass(frozen=True)
class Container:
    """A container of a pod; `where` is its path, `init` whether it stands among the init containers."""

    where: str
    spec: Document
    init: bool

    @property
    def sidecar(self) -> bool:
        """Whether it is an init container that runs beside the others."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def ports(self) -> dict[str, int]:
        """Its ports by name; one without a name stands under its number."""
        ports = self.spec.get("ports") or ()
        return {port.get("name", str(port["containerPort"])): port["containerPort"] for port in ports}

    def ports_text(self) -> str:
        """Its ports, as a problem's text has them."""
        return ports_text(self.ports)

    @property
    def args(self) -> list[str]:
        """Its arguments."""
        return list(self.spec.get("args") or ())

    @property
    def writable(self) -> list[Document]:
        """Its mounts that it may write to."""
        return [mount for mount in self.spec.get("volumeMounts") or () if not mount.get("readOnly")]

    @property
    def env(self) -> dict[str, Document]:
        """Its environment variables by name."""
        return {variable["name"]: variable for variable in self.spec.get("env") or ()}


@dataclass(frozen=True)
class Pod:
    """A template of pods, and the workload that it stands in."""

    owner: Document
    path: str
    template: Document

    @property
    def name(self) -> str:
        """The workload's `Kind/name`."""
        return name_of(self.owner)

    @property
    def namespace(self) -> str:
        """Where the pods run."""
        return namespace_of(self.owner)

    @property
    def kind(self) -> str:
        """The workload's kind."""
        return str(self.owner["kind"])

    @property
    def labels(self) -> dict[str, str]:
        """The pods' labels."""
        return dict((self.template.get("metadata") or {}).get("labels") or {})

    @property
    def component(self) -> str:
        """What the pods are, by their label: gateway, engine, sweep or nothing of these."""
        return self.labels.get(COMPONENT, "")

    @property
    def spec(self) -> Document:
        """The pods' spec."""
        return self.template.get("spec") or {}

    @property
    def serves(self) -> bool:
        """Whether the pods run until they are stopped."""
        return bool(self.spec.get("restartPolicy", "Always") == "Always")

    @cached_property
    def containers(self) -> tuple[Container, ...]:
        """Every container, init containers first."""
        return tuple(
            Container(f"{self.path}.{key}[{spec.get('name', index)}]", spec, key == "initContainers")
            for key in ("initContainers", "containers")
            for index, spec in enumerate(self.spec.get(key) or ())
        )

    @cached_property
    def ports(self) -> dict[str, int]:
        """The ports of all containers that keep running."""
        running = (one for one in self.containers if not one.init or one.sidecar)
        return {name: number for one in running for name, number in one.ports.items()}

    @property
    def port_names(self) -> set[str | int]:
        """What a port of them may be called: its name, and its number."""
        return {*self.ports, *self.ports.values()}

    def has_port(self, port: str | int) -> bool:
        """Whether a container listens there, by name or by number."""
        return port in self.ports if isinstance(port, str) else port in self.ports.values()

    def ports_text(self) -> str:
        """The ports there are, as a problem's text has them."""
        return ports_text(self.ports)


@dataclass(frozen=True)
class Rendering:
    """All objects of one rendering."""

    documents: tuple[Document, ...]

    def of(self, *kinds: str) -> Iterator[Document]:
        """Yield the objects of these kinds."""
        return (document for document in self.documents if document.get("kind") in kinds)

    def find(self, kind: str, name: object, namespace: str) -> Document | None:
        """Return an object by its name, or None."""
        return next(
            (
                document
                for document in self.of(kind)
                if document["metadata"]["name"] == name and namespace_of(document) == namespace
            ),
            None,
        )

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """Every template of pods."""
        return tuple(
            Pod(document, ".".join((*_TEMPLATES[document["kind"]], "spec")), at(document, *path))
            for document in self.documents
            if (path := _TEMPLATES.get(document.get("kind", ""))) is not None
        )

    def selected(self, selector: Mapping[str, Any] | None, namespace: str) -> list[Pod]:
        """Return the pods of a namespace that a label selector matches."""
        return [pod for pod in self.pods if pod.namespace == namespace and matches(selector, pod.labels)]

    def names(self, kind: str, namespace: str) -> str:
        """The names that there are of a kind, in words."""
        found = (one["metadata"]["name"] for one in self.of(kind) if namespace_of(one) == namespace)
        return ", ".join(sorted(found)) or "none"


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches everything, none at all nothing."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.get("matchExpressions") or ():
        value, values = labels.get(expression["key"]), expression.get("values") or ()
        if not {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }.get(expression["operator"]):
            return False
    return True


def at(document: Mapping[str, Any], *path: str) -> Any:
    """Return what stands at a path of keys; an empty section where something on the way is missing."""
    found: Any = document
    for key in path:
        found = (found or {}).get(key)
    return {} if found is None else found


def name_of(document: Mapping[str, Any]) -> str:
    """An object's `Kind/name`."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{document.get('kind', '?')}/{name or '?'}"


def namespace_of(document: Mapping[str, Any]) -> str:
    """An object's namespace; empty where it names none."""
    return str((document.get("metadata") or {}).get("namespace", ""))


def ports_text(ports: Mapping[str, int]) -> str:
    """Ports by name, as a problem's text has them."""
    return ", ".join(f"{name} ({number})" for name, number in ports.items()) or "none"


def label_text(labels: object) -> str:
    """A selector or labels, as a problem's text has them."""
    if isinstance(labels, dict):
        return ",".join(f"{key}={label_text(value)}" for key, value in labels.items()) or "{}"
    return str(labels)
