"""Schemas are strict: of core objects and of custom resources, whose files are what their models say."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from deploy.checks import crds
from deploy.checks.schemas import CRDS, check

FILES = sorted(CRDS.glob("*.json"))
DERIVED = {kind.lower(): distribution for distribution, (_, kinds) in crds.MODELS.items() for kind in kinds}


def of(kind: str, api_version: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}, "spec": spec}


def lines(*documents: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in check(documents)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_a_schema_that_is_closed_everywhere(path: Any) -> None:
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)

    def look(part: Any) -> None:
        if isinstance(part, dict):
            if isinstance(part.get("properties"), dict) and "type" in part:
                assert part["additionalProperties"] is False
            assert part.get("type") != "null"
        for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            look(inner)

    look(schema)


def test_files_are_what_the_models_of_keda_say() -> None:
    for file, schema in crds.derive("cloudcoil-models-keda").items():
        assert (CRDS / file).read_text() == crds.written(schema), (
            "python -m deploy.checks.crds writes it anew"
        )


def test_files_come_from_the_models_that_are_installed() -> None:
    """The Prometheus operator's take seconds to import: their version stands for them."""
    kinds = {path.name.partition("-")[0]: json.loads(path.read_text())["$comment"] for path in FILES}
    for kind, distribution in DERIVED.items():
        assert kinds[kind] == f"{distribution} {version(distribution)}", "python -m deploy.checks.crds"


def test_a_schema_is_closed_to_null_and_to_what_it_does_not_name() -> None:
    schema = {
        "title": "T",
        "properties": {
            "title": {"anyOf": [{"type": "string", "pattern": "^(?i)a"}, {"type": "null"}], "default": None},
            "size": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "type": "object",
    }
    closed = crds.strict(schema)
    assert closed == {
        "properties": {
            "title": {"type": "string", "pattern": "(?i)^a"},
            "size": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "type": "object",
        "additionalProperties": False,
    }


SCALED = {"scaleTargetRef": {"name": "d"}, "triggers": [{"type": "prometheus", "metadata": {"query": "up"}}]}


def test_objects_that_are_right_pass() -> None:
    assert not lines(
        of("ScaledObject", "keda.sh/v1alpha1", **SCALED),
        of(
            "TriggerAuthentication",
            "keda.sh/v1alpha1",
            secretTargetRef=[{"parameter": "p", "name": "n", "key": "k"}],
        ),
        of("ServiceMonitor", "monitoring.coreos.com/v1", selector={}, endpoints=[{"port": "http"}]),
        of("Gateway", "gateway.networking.k8s.io/v1", gatewayClassName="c", listeners=[]),
    )


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (
            of("ScaledObject", "keda.sh/v1alpha1", **SCALED, coolDownPeriod=5),
            "ScaledObject/a: spec: 'coolDownPeriod' is no field of it; there are advanced, cooldownPeriod",
        ),
        (
            of("ScaledObject", "keda.sh/v1alpha1", **SCALED | {"maxReplicaCount": "6"}),
            "ScaledObject/a: spec.maxReplicaCount: '6' is not of type 'integer'",
        ),
        (
            of(
                "ScaledObject",
                "keda.sh/v1alpha1",
                scaleTargetRef={"name": "d"},
                triggers=[{"type": "x", "metadata": {"a": 1}}],
            ),
            "ScaledObject/a: spec.triggers[0].metadata.a: 1 is not of type 'string'",
        ),
        (
            of("ServiceMonitor", "monitoring.coreos.com/v1", selector={}, endpoints=[{"prot": "http"}]),
            "ServiceMonitor/a: spec.endpoints[0]: 'prot' is no field",
        ),
        (
            of("Service", "v1", ports=[{"name": "h", "port": "80"}]),
            "Service/a: spec.ports[h].port: '80' is not of type",
        ),
        (
            of("PodDisruptionBudget", "policy/v1", maxUnavailable=1.5),
            "PodDisruptionBudget/a: spec.maxUnavailable: 1.5 is not",
        ),
        (
            of("Certificate", "cert-manager.io/v1"),
            "Certificate/a: kind: no schema of cert-manager.io/v1 Certificate",
        ),
        (
            of("Ingress", "extensions.example/v1"),
            "Ingress/a: kind: no schema of extensions.example/v1 Ingress",
        ),
        ({"kind": "Service"}, "Service/?: metadata: must be a section with a name"),
        (
            {"kind": "Service", "metadata": {"name": "a"}},
            "Service/a: kind: no schema of None Service",
        ),
        (
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}},
            "Service/a: spec: is missing",
        ),
        (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "labels": {"-a": "b"}}},
            "Namespace/a: metadata.labels[-a]: is no label's key",
        ),
    ],
)
def test_objects_that_are_wrong_are_told_where_and_what(document: dict[str, Any], problem: str) -> None:
    found = lines(document)
    assert found[0].startswith(problem), found


def test_an_object_that_is_there_twice_is_told() -> None:
    one = of("Service", "v1")
    elsewhere = {**one, "metadata": {"name": "a", "namespace": "b"}}
    assert lines(one, elsewhere, one) == ["Service/a: metadata.name: is there twice; the last one would win"]
