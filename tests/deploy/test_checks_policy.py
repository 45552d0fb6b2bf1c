"""Our own reading of small objects where overlays have none: autoscalers, monitors, limits, selectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.checks import autoscaling, network, serving
from deploy.checks.network import demanded, evictable
from deploy.checks.objects import Rendering, matches
from deploy.checks.pods import quantity
from gateway.server import listen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploy.checks.objects import Document, Problem

LABELS = {"app": "gateway"}


def workload(kind: str = "Deployment", name: str = "d", **spec: Any) -> Document:
    container = {"name": "c", "ports": [{"name": "http", "containerPort": 8000}]}
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": LABELS}, "template": template, **spec},
    }


def of(kind: str, name: str = "x", labels: dict[str, str] | None = None, **spec: Any) -> Document:
    return {"kind": kind, "metadata": {"name": name, "labels": labels or {}}, "spec": spec}


def lines(check: Callable[[Rendering], Iterator[Problem]], *documents: Document) -> list[str]:
    return sorted(str(problem) for problem in check(Rendering(documents)))


def scaled(name: str = "x", **spec: Any) -> Document:
    return of(
        "ScaledObject",
        name,
        **{"scaleTargetRef": {"name": "d"}, "minReplicaCount": 1, "triggers": [], **spec},
    )


TRIGGER = {"serverAddress": "http://p:9090", "query": "up", "threshold": "1", "ignoreNullValues": "false"}


class TestAutoscalers:
    def test_one_that_is_right_passes(self) -> None:
        triggers = [{"type": "prometheus", "metadata": TRIGGER}, {"type": "cron", "metadata": {}}]
        assert not lines(
            autoscaling.check, workload(), scaled(minReplicaCount=1, maxReplicaCount=3, triggers=triggers)
        )

    @pytest.mark.parametrize(
        ("edit", "problem"),
        [
            (
                {"scaleTargetRef": {"name": "e"}},
                "spec.scaleTargetRef: no Deployment e to scale in its namespace; there are: d",
            ),
            (
                {"scaleTargetRef": {"name": "d", "kind": "StatefulSet"}},
                "spec.scaleTargetRef: no StatefulSet d",
            ),
            ({"scaleTargetRef": {"name": "d", "apiVersion": "v1"}}, "spec.scaleTargetRef: no Deployment d"),
            ({"minReplicaCount": 4, "maxReplicaCount": 3}, "spec: at least 4 and at most 3 replicas"),
            ({"minReplicaCount": 101}, "spec: at least 101 and at most 100 replicas"),
        ],
    )
    def test_one_that_is_wrong_is_told(self, edit: dict[str, Any], problem: str) -> None:
        found = lines(autoscaling.check, workload(), scaled(**edit))
        assert found[0].startswith(f"ScaledObject/x: {problem}")

    @pytest.mark.parametrize(
        ("edit", "problem"),
        [
            ({"query": ""}, "query: is missing"),
            ({"ignoreNullValues": None}, 'ignoreNullValues: must be "false": no data would count as 0'),
            ({"serverAddress": None}, "serverAddress: is missing"),
            ({"threshold": None}, "threshold: is missing"),
            ({"threshold": "many"}, "threshold: 'many' is not a number"),
            ({"activationThreshold": "1/2"}, "activationThreshold: '1/2' is not a number"),
        ],
    )
    def test_a_trigger_that_is_incomplete_is_told(self, edit: dict[str, Any], problem: str) -> None:
        metadata = {key: value for key, value in {**TRIGGER, **edit}.items() if value is not None}
        scaler = scaled(triggers=[{"type": "prometheus", "name": "waiting", "metadata": metadata}])
        found = lines(autoscaling.check, workload(), scaler)
        (line,) = found
        assert line.startswith(f"ScaledObject/x: spec.triggers[waiting].metadata.{problem}")

    def test_two_of_one_workload_are_told(self) -> None:
        hpa = of("HorizontalPodAutoscaler", scaleTargetRef={"kind": "Deployment", "name": "d"}, maxReplicas=2)
        (problem,) = lines(autoscaling.check, workload(), scaled(), hpa)
        assert problem.startswith(
            "Deployment/d: spec: is scaled by ScaledObject/x and HorizontalPodAutoscaler/x"
        )

    def test_a_number_of_replicas_that_would_undo_the_scaling_is_told(self) -> None:
        (problem,) = lines(autoscaling.check, workload(replicas=2), scaled())
        assert problem.startswith("Deployment/d: spec.replicas: must not be set: ScaledObject/x scales it")

    def test_a_plain_ones_defaults_are_its_own(self) -> None:
        hpa = of("HorizontalPodAutoscaler", scaleTargetRef={"kind": "Deployment", "name": "d"}, maxReplicas=2)
        assert network.bounds(hpa) == (1, 2)
        assert network.bounds(of("ScaledObject")) == (0, 100)


class TestBudgets:
    @pytest.mark.parametrize(
        ("budget", "replicas", "expected"),
        [
            ({"maxUnavailable": 1}, 1, 1),
            ({"maxUnavailable": 0}, 5, 0),
            ({"maxUnavailable": "10%"}, 3, 1),
            ({"maxUnavailable": "0%"}, 3, 0),
            ({"minAvailable": 1}, 1, 0),
            ({"minAvailable": 1}, 2, 1),
            ({"minAvailable": "50%"}, 3, 1),
            ({"minAvailable": "100%"}, 3, 0),
            ({"maxUnavailable": "half"}, 3, 0),
            ({}, 3, 3),
        ],
    )
    def test_what_may_be_evicted(self, budget: dict[str, Any], replicas: int, expected: int) -> None:
        assert evictable(budget, replicas) == expected

    def test_the_fewest_that_an_autoscaler_leaves_count(self) -> None:
        budget = of("PodDisruptionBudget", minAvailable=1, selector={"matchLabels": LABELS})
        wrong = "with 1 replicas of Deployment/d no pod may ever be evicted"
        assert any(
            wrong in line for line in lines(network.check, workload(), budget, scaled(minReplicaCount=1))
        )
        for least in (0, 2):
            found = lines(network.check, workload(), budget, scaled(minReplicaCount=least))
            assert not any("evicted" in line for line in found)


SERVICE = of(
    "Service", "s", LABELS, selector=LABELS, ports=[{"name": "http", "port": 80, "targetPort": 8000}]
)


class TestMonitors:
    @pytest.mark.parametrize(
        ("kind", "spec", "problem"),
        [
            ("ServiceMonitor", {"endpoints": [{"port": "http"}]}, ""),
            (
                "ServiceMonitor",
                {"endpoints": [{"port": "metrics"}]},
                "spec.endpoints[0].port: Service/s has no port",
            ),
            (
                "ServiceMonitor",
                {"selector": {"matchLabels": {"app": "x"}}},
                "spec.selector: matchLabels=app=x matches",
            ),
            ("ServiceMonitor", {"namespaceSelector": {"matchNames": ["x"]}}, "spec.selector: "),
            ("ServiceMonitor", {"namespaceSelector": {"any": True}}, ""),
            ("PodMonitor", {"podMetricsEndpoints": [{"portNumber": 8000}]}, ""),
            (
                "PodMonitor",
                {"podMetricsEndpoints": [{"port": "x"}]},
                "spec.podMetricsEndpoints[0].port: Deployment/d",
            ),
        ],
    )
    def test_they_lead_somewhere(self, kind: str, spec: dict[str, Any], problem: str) -> None:
        whole = {"selector": {"matchLabels": LABELS}, "endpoints": [{"port": "http"}], **spec}
        monitor = of(kind, **whole)
        found = [line for line in lines(network.check, workload(), SERVICE, monitor) if line.startswith(kind)]
        assert bool(found) == bool(problem)
        assert all(line.startswith(f"{kind}/x: {problem}") for line in found)


def test_an_ingress_default_and_an_external_name() -> None:
    ingress = of("Ingress", defaultBackend={"service": {"name": "none", "port": {"number": 80}}})
    external = of("Service", "e", type="ExternalName", externalName="a.example")
    assert lines(network.check, ingress, external) == [
        "Ingress/x: spec.defaultBackend: no Service none; there are: e"
    ]


def test_an_object_that_would_land_elsewhere_is_told() -> None:
    placed = {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ocr"}}
    lost = {"kind": "ConfigMap", "metadata": {"name": "b"}}
    space = {"kind": "Namespace", "metadata": {"name": "ocr"}}
    assert lines(network.check, placed, lost, space) == [
        "ConfigMap/b: metadata.namespace: is missing, and others name theirs"
    ]


KEYS = st.sampled_from(["a", "b"])
VALUES = st.sampled_from(["x", "y", "z"])
SELECTORS = st.fixed_dictionaries(
    {},
    optional={
        "matchLabels": st.dictionaries(KEYS, VALUES, max_size=2),
        "matchExpressions": st.lists(
            st.fixed_dictionaries(
                {"key": KEYS, "operator": st.just("In"), "values": st.lists(VALUES, min_size=1)}
            )
            | st.fixed_dictionaries({"key": KEYS, "operator": st.sampled_from(["Exists", "DoesNotExist"])})
            | st.fixed_dictionaries(
                {"key": KEYS, "operator": st.just("NotIn"), "values": st.lists(VALUES, min_size=1)}
            ),
            max_size=2,
        ),
    },
)


@given(SELECTORS, st.dictionaries(KEYS, VALUES))
def test_what_a_selector_matches_has_the_labels_that_it_demands(
    selector: dict[str, Any], labels: dict[str, str]
) -> None:
    if matches(selector, labels):
        assert all(labels[key] in values for key, values in demanded(selector).items())


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"a": "x"}}, True),
        ({"matchLabels": {"a": "y"}}, False),
        ({"matchLabels": {"a": "x", "c": "x"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["x"]}]}, True),
        ({"matchExpressions": [{"key": "c", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "c", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_a_selector_matches_as_kubernetes_says(selector: dict[str, Any] | None, expected: bool) -> None:
    assert matches(selector, {"a": "x"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500m", 0.5), ("2", 2), ("1.5Gi", 1.5 * 2**30), ("4e9", 4e9), ("1k", 1000), ("x", 0)],
)
def test_quantities_are_read(text: str, expected: float) -> None:
    assert float(quantity(text)) == expected


def test_a_stop_is_reckoned_as_the_gateway_makes_it() -> None:
    assert serving.LAST_BYTES_S == listen._LAST_BYTES_S


class TestLimitsInFront:
    """nginx's and the Gateway API's own ways to write a size and a time; 0 is no limit."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("32m", 2**25), ("8k", 2**13), ("1G", 2**30), ("33554432", 2**25), ("0", float("inf")), ("x", 0)],
    )
    def test_sizes(self, text: str, expected: float) -> None:
        assert serving.size(text) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("1h30m", 5400), ("340s", 340), ("500ms", 0.5), ("0s", float("inf")), (None, 0), ("x", 0)],
    )
    def test_times(self, text: str | None, expected: float) -> None:
        assert serving.seconds(text) == expected
