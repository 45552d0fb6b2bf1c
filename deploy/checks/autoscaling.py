"""Autoscalers: what they scale exists, within bounds that everything else was set up for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deploy.checks.network import bounds, scalers
from deploy.checks.objects import at, name_of, named, namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Document, Findings, Problem, Rendering

# What KEDA's prometheus scaler cannot do without.
_TRIGGER = ("serverAddress", "query", "threshold")
_ADDRESS = re.compile(r"https?://\S+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def check(rendering: Rendering) -> Iterator[Problem]:
    """Yield what is wrong with the autoscalers, but for their queries."""
    for scaler in rendering.of("ScaledObject", "HorizontalPodAutoscaler"):
        yield from named(name_of(scaler), _scaler(rendering, scaler))
    for workload in rendering.of("Deployment", "StatefulSet"):
        yield from named(name_of(workload), _workload(rendering, workload))


def _scaler(rendering: Rendering, scaler: Document) -> Findings:
    spec, target = scaler["spec"], at(scaler, "spec", "scaleTargetRef")
    kind, name, space = target.get("kind", "Deployment"), target.get("name"), namespace_of(scaler)
    found = rendering.find(kind, name, space)
    if found is None or target.get("apiVersion", found["apiVersion"]) != found["apiVersion"]:
        there = rendering.names(kind, space)
        yield "spec.scaleTargetRef", f"no {kind} {name} to scale in its namespace; there are: {there}"
    least, most = bounds(scaler)
    if least > most:
        yield "spec", f"at least {least} and at most {most} replicas: no number is both"
    if min(least, spec.get("idleReplicaCount", least)) < 1:
        yield "spec", "may end all replicas, and no request waits until one is back; minReplicaCount: 1"
    for index, trigger in enumerate(spec.get("triggers") or ()):
        if trigger.get("type") == "prometheus":
            yield from _trigger(f"spec.triggers[{trigger.get('name', index)}]", trigger)


def _workload(rendering: Rendering, workload: Document) -> Findings:
    own = [name_of(scaler) for scaler in scalers(rendering, workload)]
    if len(own) > 1:
        yield "spec", f"is scaled by {' and '.join(own)}, which undo each other's work; keep one"
    if own and "replicas" in workload["spec"]:
        text = f"must not be set: {own[0]} scales it, and every `kubectl apply` would undo that"
        yield "spec.replicas", text


def _trigger(where: str, trigger: Document) -> Findings:
    metadata = trigger.get("metadata") or {}
    for key in _TRIGGER:
        if not metadata.get(key):
            yield f"{where}.metadata.{key}", "is missing"
    if metadata.get("ignoreNullValues", "true") != "false":
        text = 'must be "false": no data would count as 0, and end every engine but the fewest'
        yield f"{where}.metadata.ignoreNullValues", text
    if not _ADDRESS.fullmatch(str(metadata.get("serverAddress", "http://x"))):
        yield f"{where}.metadata.serverAddress", "must begin with http:// or https://"
    if trigger.get("metricType", "AverageValue") != "AverageValue":
        text = "must be AverageValue: the query's figure is for all replicas together"
        yield f"{where}.metricType", text
    for key in ("threshold", "activationThreshold"):
        if not _NUMBER.fullmatch(str(metadata.get(key, "0"))):
            yield f"{where}.metadata.{key}", f"{metadata[key]!r} is not a number"
