"""What finds what: Services, budgets, policies, monitors and routes against the pods and ports there are."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from deploy.checks.objects import (
    COMPONENT,
    ENGINE,
    GATEWAY,
    SWEEP,
    at,
    label_text,
    matches,
    name_of,
    named,
    namespace_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from deploy.checks.objects import Document, Findings, Pod, Problem, Rendering

_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
# Who may send an engine work, and who may read its metrics.
_SENDERS = {GATEWAY, SWEEP}
_PROMETHEUS = {"app.kubernetes.io/name": {"prometheus"}}
_NAMESPACE = "kubernetes.io/metadata.name"
_DNS_PORT = 53
_POD_LABELS = "spec.template.metadata.labels"


def check(rendering: Rendering) -> Iterator[Problem]:
    """Yield every selector, port and backend that leads nowhere, or too far."""
    yield from _namespaces(rendering)
    for pod in rendering.pods:
        yield from named(pod.name, _workload(rendering, pod))
        yield from named(pod.name, _policies_of(rendering, pod))
    for kind, findings in _CHECKS.items():
        for document in rendering.of(kind):
            yield from named(name_of(document), findings(rendering, document))


def _namespaces(rendering: Rendering) -> Iterator[Problem]:
    spaces = {one["metadata"]["name"]: one for one in rendering.of("Namespace")}
    placed = [one for one in rendering.documents if one.get("kind") not in ("Namespace", "GatewayClass")]
    if any(map(namespace_of, placed)):
        for document in placed:
            if not namespace_of(document):
                found = ("metadata.namespace", "is missing, and others name theirs")
                yield from named(name_of(document), [found])
    for name in {pod.namespace for pod in rendering.pods} & spaces.keys():
        key = "pod-security.kubernetes.io/enforce"
        if at(spaces[name], "metadata", "labels").get(key) != "restricted":
            yield from named(f"Namespace/{name}", [("metadata.labels", f"{key} must be restricted")])


def _workload(rendering: Rendering, pod: Pod) -> Findings:
    if pod.kind not in _WORKLOADS:
        return
    selector = at(pod.owner, "spec", "selector")
    yield from _selects_one(rendering, pod.owner, "spec.selector", selector, {pod.name})
    service = at(pod.owner, "spec", "serviceName")
    if pod.kind == "StatefulSet" and rendering.find("Service", service, pod.namespace) is None:
        there = rendering.names("Service", pod.namespace)
        yield "spec.serviceName", f"no Service {service or ''}; there are: {there}"
    if pod.kind in ("Deployment", "StatefulSet"):
        own = [
            name_of(budget)
            for budget in rendering.of("PodDisruptionBudget")
            if namespace_of(budget) == pod.namespace and matches(at(budget, "spec", "selector"), pod.labels)
        ]
        if len(own) != 1:
            text = f"{len(own)} PodDisruptionBudgets match its pods ({', '.join(own) or 'none'}); one must"
            yield _POD_LABELS, text


def _selects_one(
    rendering: Rendering,
    document: Document,
    where: str,
    selector: Mapping[str, Any],
    only: set[str] | None = None,
) -> Findings:
    """A selector must match pods, and those of one workload alone (`only`, where it is known which)."""
    names = {pod.name for pod in rendering.selected(selector, namespace_of(document))}
    if not names or (only and not only <= names):
        yield where, f"{_selector(selector)} matches no pod{' of its own' * bool(only)}{_pods(rendering)}"
    elif len(names) > 1:
        text = f"{_selector(selector)} matches pods of {' and '.join(sorted(names))}; narrow it to one"
        yield where, text


def _service(rendering: Rendering, service: Document) -> Findings:
    if at(service, "spec", "type") == "ExternalName":
        return
    selector = {"matchLabels": at(service, "spec", "selector")}
    yield from _selects_one(rendering, service, "spec.selector", selector)
    pods = rendering.selected(selector, namespace_of(service))
    for port in at(service, "spec", "ports") or ():
        where = f"spec.ports[{port.get('name', port['port'])}].targetPort"
        yield from _listen(pods, port.get("targetPort", port["port"]), where)


def _listen(pods: Iterable[Pod], port: Any, where: str) -> Findings:
    """Pods must have the port that something else counts on; None is any."""
    for pod in pods:
        if port is not None and not pod.has_port(port):
            yield where, f"{pod.name} has no port {port}; it has {pod.ports_text()}"


def scalers(rendering: Rendering, workload: Document) -> list[Document]:
    """Return the autoscalers of a workload."""
    return [
        scaler
        for scaler in rendering.of("ScaledObject", "HorizontalPodAutoscaler")
        if (target := at(scaler, "spec", "scaleTargetRef"))
        and target.get("name") == workload["metadata"]["name"]
        and target.get("kind", "Deployment") == workload["kind"]
        and namespace_of(scaler) == namespace_of(workload)
    ]


def bounds(scaler: Document) -> tuple[int, int]:
    """Return the fewest and the most replicas, with the defaults of its kind."""
    spec = scaler["spec"]
    if scaler["kind"] == "ScaledObject":
        return spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
    return spec.get("minReplicas", 1), spec.get("maxReplicas", 1)


def fewest(rendering: Rendering, pod: Pod) -> int:
    """Return the fewest replicas that a workload runs with: its own number, or its autoscaler's least."""
    for scaler in scalers(rendering, pod.owner):
        return bounds(scaler)[0]
    return int(pod.owner["spec"].get("replicas", 1))


def _budget(rendering: Rendering, budget: Document) -> Findings:
    selector = at(budget, "spec", "selector")
    yield from _selects_one(rendering, budget, "spec.selector", selector)
    for pod in rendering.selected(selector, namespace_of(budget)):
        replicas = fewest(rendering, pod)
        allowed = evictable(at(budget, "spec"), replicas)
        if replicas > 1 and allowed >= replicas:
            yield "spec", f"lets all {replicas} pods of {pod.name} go at once; maxUnavailable: 1 lets one go"
        if replicas and allowed < 1:
            text = (
                f"with {replicas} replicas of {pod.name} no pod may ever be evicted: a node cannot be drained"
            )
            yield "spec", f"{text}; maxUnavailable: 1 lets one go"


def evictable(budget: Mapping[str, Any], replicas: int, rounded: Callable[[float], int] = math.ceil) -> int:
    """Return how many of so many healthy pods a budget lets go; percentages round up, as Kubernetes does."""

    def count(value: int | str) -> int:
        if isinstance(value, int):
            return value
        share = re.fullmatch(r"([0-9]+)%", value)
        return rounded(replicas * int(share[1]) / 100) if share else 0

    if "maxUnavailable" in budget:
        return count(budget["maxUnavailable"])
    return replicas - count(budget.get("minAvailable", 0))


def _policy(rendering: Rendering, policy: Document) -> Findings:
    """A policy must match pods and ports that there are, and let in nobody who has no business there."""
    selector = at(policy, "spec", "podSelector")
    selected = rendering.selected(selector, namespace_of(policy))
    if not selected:
        yield "spec.podSelector", f"{_selector(selector)} matches no pod{_pods(rendering)}"
    for index, rule in enumerate(at(policy, "spec", "ingress") or ()):
        for port in rule.get("ports") or ():
            with_ports = [pod for pod in selected if pod.ports]
            yield from _listen(with_ports, port.get("port"), f"spec.ingress[{index}].ports")
        for pod in selected if "Ingress" in _directions(policy) else ():
            yield from _let_in(pod, rule.get("from") or (), f"spec.ingress[{index}].from")
    for index, rule in enumerate(at(policy, "spec", "egress") or ()):
        where = f"spec.egress[{index}]"
        for peer in rule.get("to") or ():
            if peer.keys() != {"podSelector"}:
                continue
            found = rendering.selected(peer["podSelector"], namespace_of(policy))
            if not found and any(pod.component == ENGINE for pod in rendering.pods):
                yield f"{where}.to", f"{_selector(peer['podSelector'])} matches no pod{_pods(rendering)}"
            for port in rule.get("ports") or ():
                yield from _listen(found, port.get("port"), f"{where}.ports")


def _let_in(pod: Pod, peers: Iterable[Mapping[str, Any]], where: str) -> Findings:
    """Engines take work from gateways and the sweep alone; nothing takes it from everyone."""
    if not peers:
        yield where, f"is empty, which lets everyone in to {pod.name}"
    for number, peer in enumerate(peers):
        if pod.component == ENGINE and not _may_enter(peer):
            text = (
                f"lets in to {pod.name} others than pods of this namespace labelled {COMPONENT}: gateway or "
            )
            text += "sweep, and Prometheus (a namespaceSelector and app.kubernetes.io/name: prometheus)"
            yield f"{where}[{number}]", text
        elif not any(at(peer, key) for key in ("podSelector", "namespaceSelector", "ipBlock")):
            yield f"{where}[{number}]", f"selects everything: whom should {pod.name} take work from?"


def _may_enter(peer: Mapping[str, Any]) -> bool:
    if "namespaceSelector" in peer:
        return is_prometheus(peer)
    labels = demanded(peer.get("podSelector") or {})
    return "ipBlock" not in peer and labels.get(COMPONENT, {""}) <= _SENDERS


def is_prometheus(peer: Mapping[str, Any]) -> bool:
    """Whether a policy's peer is a namespace's Prometheus, and nothing else."""
    labels = demanded(peer.get("podSelector") or {})
    return _NAMESPACE in demanded(peer.get("namespaceSelector") or {}) and any(
        labels.get(key, {""}) <= values for key, values in _PROMETHEUS.items()
    )


def demanded(selector: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the values that a label selector demands, by label; what it only excludes is not among them."""
    found = {key: {value} for key, value in (selector.get("matchLabels") or {}).items()}
    for expression in selector.get("matchExpressions") or ():
        if expression["operator"] == "In":
            values = set(expression.get("values") or ())
            found[expression["key"]] = found.get(expression["key"], values) & values
    return found


def _directions(policy: Document) -> list[str]:
    given = at(policy, "spec", "policyTypes")
    return list(given) if given else ["Ingress"] + ["Egress"] * bool(at(policy, "spec", "egress"))


def selecting(rendering: Rendering, pod: Pod) -> list[Document]:
    """Return the NetworkPolicies that select a pod."""
    return [
        policy
        for policy in rendering.of("NetworkPolicy")
        if namespace_of(policy) == pod.namespace and matches(at(policy, "spec", "podSelector"), pod.labels)
    ]


def _policies_of(rendering: Rendering, pod: Pod) -> Findings:
    """A pod's policies close it; they must let in who has to reach it, and out what it needs."""
    own = selecting(rendering, pod)
    closed_in = [policy for policy in own if "Ingress" in _directions(policy)]
    closed_out = [policy for policy in own if "Egress" in _directions(policy)]
    if not closed_in:
        text = (
            f"no NetworkPolicy selects its pods for Ingress ({label_text(pod.labels)}): everyone reaches them"
        )
        yield _POD_LABELS, text
    others = [other for other in rendering.pods if other.namespace == pod.namespace]
    if closed_out:
        rules = [rule for policy in closed_out for rule in at(policy, "spec", "egress") or ()]
        for protocol in ("UDP", "TCP"):
            if not any(opens(rule, {_DNS_PORT}, protocol) for rule in rules):
                yield _POD_LABELS, f"its NetworkPolicies let no DNS out ({protocol} port 53)"
        for engine in others if pod.component in _SENDERS else ():
            if engine.component == ENGINE and not any(
                opens(rule, engine.port_names, "TCP") and _leads_to(rule, engine, "to") for rule in rules
            ):
                yield _POD_LABELS, f"its NetworkPolicies do not let it out to {engine.name}"
    if closed_in:
        rules = [rule for policy in closed_in for rule in at(policy, "spec", "ingress") or ()]
        rules = [rule for rule in rules if opens(rule, pod.port_names, "TCP")]
        if pod.component == GATEWAY and not any(rule.get("from") for rule in rules):
            yield _POD_LABELS, "its NetworkPolicies let nobody in to its ports"
        for sender in others if pod.component == ENGINE else ():
            if sender.component in _SENDERS and not any(_leads_to(rule, sender, "from") for rule in rules):
                yield _POD_LABELS, f"its NetworkPolicies do not let {sender.name} in"


def opens(rule: Mapping[str, Any], ports: set[Any], protocol: str) -> bool:
    """Whether a policy's rule opens one of these ports, which are one's name and number."""
    own = rule.get("ports")
    return not own or any(
        port.get("protocol", "TCP") == protocol
        and any(port.get("port", known) == known or known in _range(port) for known in ports)
        for port in own
    )


def _range(port: Mapping[str, Any]) -> range:
    first, last = port.get("port"), port.get("endPort")
    return range(first, last + 1) if isinstance(first, int) and isinstance(last, int) else range(0)


def _leads_to(rule: Mapping[str, Any], pod: Pod, key: str) -> bool:
    peers = rule.get(key)
    return not peers or any(
        "podSelector" in peer and matches(peer["podSelector"], pod.labels) for peer in peers
    )


def monitor_ports(monitor: Document) -> Iterator[tuple[str, Any]]:
    """Yield where a PodMonitor names a port, and the port."""
    for index, endpoint in enumerate(at(monitor, "spec", "podMetricsEndpoints") or ()):
        port = endpoint.get("port", endpoint.get("portNumber", endpoint.get("targetPort", "")))
        yield f"spec.podMetricsEndpoints[{index}].port", port


def watched(rendering: Rendering, monitor: Document) -> set[str]:
    """Return the namespaces that a monitor looks into."""
    chosen = at(monitor, "spec", "namespaceSelector")
    if chosen.get("any"):
        return set(map(namespace_of, rendering.documents))
    return set(chosen.get("matchNames") or [namespace_of(monitor)])


def _pod_monitor(rendering: Rendering, monitor: Document) -> Findings:
    selector, spaces = at(monitor, "spec", "selector"), watched(rendering, monitor)
    pods = [pod for space in spaces for pod in rendering.selected(selector, space)]
    yield from _watches(rendering, monitor, pods, "podMetricsEndpoints")
    for where, port in monitor_ports(monitor):
        yield from _listen(pods, port, where)


def _service_monitor(rendering: Rendering, monitor: Document) -> Findings:
    services = [
        service
        for service in rendering.of("Service")
        if namespace_of(service) in watched(rendering, monitor)
        and matches(at(monitor, "spec", "selector"), at(service, "metadata", "labels"))
    ]
    yield from _watches(rendering, monitor, services, "endpoints")
    for index, endpoint in enumerate(at(monitor, "spec", "endpoints") or ()):
        for service in services:
            ports = [port.get("name") for port in at(service, "spec", "ports") or ()]
            if endpoint.get("port") not in ports:
                text = f"{name_of(service)} has no port {endpoint.get('port')}; it has {ports}"
                yield f"spec.endpoints[{index}].port", text


def _watches(rendering: Rendering, monitor: Document, found: Iterable[object], endpoints: str) -> Findings:
    if not at(monitor, "spec", endpoints):
        yield f"spec.{endpoints}", "is empty: nothing is read"
    if not found:
        text = f"{_selector(at(monitor, 'spec', 'selector'))} matches nothing{_pods(rendering)}"
        yield "spec.selector", text


def backends(document: Document) -> Iterator[tuple[str, object, object]]:
    """Yield where an Ingress or HTTPRoute leads to a Service, the Service's name, and its port."""
    if document["kind"] == "HTTPRoute":
        for index, rule in enumerate(at(document, "spec", "rules") or ()):
            for number, backend in enumerate(rule.get("backendRefs") or ()):
                where = f"spec.rules[{index}].backendRefs[{number}]"
                yield where, backend.get("name"), backend.get("port")
        return
    found = [("spec.defaultBackend", at(document, "spec", "defaultBackend"))]
    for index, rule in enumerate(at(document, "spec", "rules") or ()):
        for path in at(rule, "http", "paths") or ():
            where = f"spec.rules[{rule.get('host', index)}].http.paths[{path.get('path')}].backend"
            found.append((where, path.get("backend") or {}))
    for where, backend in found:
        if service := at(backend, "service"):
            yield where, service.get("name"), at(service, "port", "name") or at(service, "port", "number")


def _ingress(rendering: Rendering, document: Document) -> Findings:
    for where, name, port in backends(document):
        service = rendering.find("Service", name, namespace_of(document))
        if service is None:
            yield where, f"no Service {name}; there are: {rendering.names('Service', namespace_of(document))}"
        else:
            ports = {one.get("name"): one["port"] for one in at(service, "spec", "ports") or ()}
            if port not in (*ports, *ports.values()):
                there = ", ".join(f"{known} ({number})" for known, number in ports.items())
                yield where, f"Service {name} has no port {port}; it has {there}"


def _http_route(rendering: Rendering, route: Document) -> Findings:
    for key in ("parentRefs", "rules"):
        if not at(route, "spec", key):
            yield f"spec.{key}", "is empty: nothing comes through"
    for index, rule in enumerate(at(route, "spec", "rules") or ()):
        if not rule.get("backendRefs") and not rule.get("filters"):
            yield f"spec.rules[{index}].backendRefs", "is empty: it leads nowhere"
    yield from _ingress(rendering, route)


def _selector(selector: Mapping[str, Any]) -> str:
    return label_text({key: value for key, value in selector.items() if value}) if selector else "{}"


def _pods(rendering: Rendering) -> str:
    return "; there are " + ", ".join(f"{pod.name} ({label_text(pod.labels)})" for pod in rendering.pods)


_CHECKS: dict[str, Callable[[Rendering, Document], Findings]] = {
    "Service": _service,
    "PodDisruptionBudget": _budget,
    "NetworkPolicy": _policy,
    "PodMonitor": _pod_monitor,
    "ServiceMonitor": _service_monitor,
    "Ingress": _ingress,
    "HTTPRoute": _http_route,
}
