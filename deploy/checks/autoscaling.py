"""Autoscalers: what they scale exists, within bounds that everything else was set up for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deploy.checks.network import scalers
from deploy.checks.objects import Problem, at, name_of, namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Document, Rendering

_KINDS = ("ScaledObject", "HorizontalPodAutoscaler")
# What KEDA's prometheus scaler cannot do without.
_TRIGGER = ("serverAddress", "query", "threshold")
_ADDRESS = re.compile(r"https?://\S+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def bounds(scaler: Document) -> tuple[int, int]:
    """Return the fewest and the most replicas, with the defaults of its kind."""
    spec = scaler["spec"]
    if scaler["kind"] == "ScaledObject":
        return spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
    return spec.get("minReplicas", 1), spec.get("maxReplicas", 1)


def check(rendering: Rendering) -> Iterator[Problem]:
    """Yield what is wrong with the autoscalers, but for their queries."""
    for scaler in rendering.of(*_KINDS):
        name, spec = name_of(scaler), scaler["spec"]
        target = at(spec, "scaleTargetRef")
        kind = target.get("kind", "Deployment")
        found = rendering.find(kind, target.get("name"), namespace_of(scaler))
        if found is None or target.get("apiVersion", found["apiVersion"]) != found["apiVersion"]:
            text = f"no {kind} {target.get('name')} to scale in its namespace; there are: "
            yield Problem(name, "spec.scaleTargetRef", text + rendering.names(kind, namespace_of(scaler)))
        least, most = bounds(scaler)
        if least > most:
            yield Problem(name, "spec", f"at least {least} and at most {most} replicas: no number is both")
        if min(least, spec.get("idleReplicaCount", least)) < 1:
            text = "may end all replicas, and no request waits until one is back; minReplicaCount: 1"
            yield Problem(name, "spec", text)
        for index, trigger in enumerate(spec.get("triggers") or ()):
            if trigger.get("type") == "prometheus":
                yield from _trigger(name, f"spec.triggers[{trigger.get('name', index)}]", trigger)
    for workload in rendering.of("Deployment", "StatefulSet"):
        own = [name_of(scaler) for scaler in scalers(rendering, workload)]
        if len(own) > 1:
            text = f"is scaled by {' and '.join(own)}, which undo each other's work; keep one"
            yield Problem(name_of(workload), "spec", text)
        if own and "replicas" in workload["spec"]:
            yield Problem(
                name_of(workload),
                "spec.replicas",
                f"must not be set: {own[0]} scales it, and every `kubectl apply` would undo that",
            )


def _trigger(name: str, where: str, trigger: Document) -> Iterator[Problem]:
    metadata = trigger.get("metadata") or {}
    for key in _TRIGGER:
        if not metadata.get(key):
            yield Problem(name, f"{where}.metadata.{key}", "is missing")
    if metadata.get("ignoreNullValues", "true") != "false":
        text = 'must be "false": no data would count as 0, and end every engine but the fewest'
        yield Problem(name, f"{where}.metadata.ignoreNullValues", text)
    if not _ADDRESS.fullmatch(str(metadata.get("serverAddress", "http://x"))):
        yield Problem(name, f"{where}.metadata.serverAddress", "must begin with http:// or https://")
    if trigger.get("metricType", "AverageValue") != "AverageValue":
        text = "must be AverageValue: the query's figure is for all replicas together"
        yield Problem(name, f"{where}.metricType", text)
    for key in ("threshold", "activationThreshold"):
        if not _NUMBER.fullmatch(str(metadata.get(key, "0"))):
            yield Problem(name, f"{where}.metadata.{key}", f"{metadata[key]!r} is not a number")
