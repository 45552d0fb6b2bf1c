"""Every overlay, and overlays with the components that may be added to them, rendered once and kept."""

from __future__ import annotations

import functools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from bench.serving import ROOT
from deploy.checks.render import render

if TYPE_CHECKING:
    from deploy.checks.objects import Document

KUBERNETES = ROOT / "deploy/kubernetes"


@dataclass(frozen=True)
class Combination:
    """An overlay with components, and what is applied beside it.

    `instead`: the overlay's own component that is left out for the others.
    """

    overlay: str
    components: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    instead: str = ""

    def __str__(self) -> str:
        parts = [
            self.overlay,
            *self.components,
            *self.beside,
            *([f"no {self.instead}"] * bool(self.instead)),
        ]
        return "+".join(parts)


OVERLAYS = [Combination(path.name) for path in sorted((KUBERNETES / "overlays").iterdir())]
FULL = Combination("production", ("keda", "gateway-api", "engine-metrics"), ("sweep",))
HPA = Combination("production", ("hpa",), instead="keda")
NGINX = Combination("production", ("ingress-nginx",))
TRACED = Combination("production", ("tracing",))
# Without keys, and with a way in: which is told.
OPEN = Combination("cpu-demo", ("ingress-nginx", "gateway-api"))
FETCHING = Combination("production", ("remote-images",))
# As mistakes.yaml calls them.
NAMED = {
    "full": FULL,
    "hpa": HPA,
    "nginx": NGINX,
    "traced": TRACED,
    "open": OPEN,
    "fetching": FETCHING,
    **{one.overlay: one for one in OVERLAYS},
}
COMBINATIONS = [
    *OVERLAYS,
    FULL,
    NGINX,
    HPA,
    Combination("single-gpu", ("monitoring", "gateway-api", "engine-metrics")),
    Combination("single-gpu", ("ingress-nginx",)),
    Combination("cpu-demo", ("monitoring",)),
    TRACED,
]


@functools.cache
def rendered(one: Combination) -> tuple[Document, ...]:
    """The objects of a combination; not to be changed."""
    if one == Combination(one.overlay):
        return tuple(render(KUBERNETES / "overlays" / one.overlay))
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for folder in ("kubernetes", "grafana"):
            shutil.copytree(ROOT / "deploy" / folder, copy / folder)
        own = copy / "kubernetes/overlays" / one.overlay / "kustomization.yaml"
        kustomization = yaml.safe_load(own.read_text())
        components = [path for path in kustomization.get("components", ()) if Path(path).name != one.instead]
        added = [f"../../components/{component}" for component in one.components]
        kustomization["components"] = [*components, *(path for path in added if path not in components)]
        own.write_text(yaml.safe_dump(kustomization))
        beside = [document for folder in one.beside for document in render(KUBERNETES / folder)]
        return (*render(own.parent), *beside)
