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
    Problem,
    at,
    matches,
    name_of,
    namespace_of,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from deploy.checks.objects import Document, Pod, Rendering

_WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
# Who may send an engine work, and who may read its metrics.
_SENDERS = {GATEWAY, SWEEP}
_PROMETHEUS = {"app.kubernetes.io/name": {"prometheus"}}
_NAMESPACE = "kubernetes.io/metadata.name"
_DNS_PORT = 53


def check(rendering: Rendering) -> Iterator[Problem]:
    """Yield every selector, port and backend that leads nowhere, or too far."""
    yield from _namespaces(rendering)
    yield from _workloads(rendering)
    yield from _services(rendering)
    yield from _budgets(rendering)
    yield from _policies(rendering)
    yield from _monitors(rendering)
    yield from _backends(rendering)


def _namespaces(rendering: Rendering) -> Iterator[Problem]:
    spaces = {one["metadata"]["name"]: one for one in rendering.of("Namespace")}
    placed = [one for one in rendering.documents if one.get("kind") not in ("Namespace", "GatewayClass")]
    if any(map(namespace_of, placed)):
        for document in placed:
            if not namespace_of(document):
                yield Problem(name_of(document), "metadata.namespace", "is missing, and others name theirs")
    for name in {pod.namespace for pod in rendering.pods} & spaces.keys():
        if at(spaces[name], "metadata", "labels").get("pod-security.kubernetes.io/enforce") != "restricted":
            yield Problem(
                f"Namespace/{name}",
                "metadata.labels",
                "pod-security.kubernetes.io/enforce must be restricted",
            )


def _workloads(rendering: Rendering) -> Iterator[Problem]:
    for pod in rendering.pods:
        if pod.kind not in _WORKLOADS:
            continue
        selector = at(pod.owner, "spec", "selector")
        yield from _one_workload(rendering, pod.owner, "spec.selector", selector, {pod.name})
        governing = at(pod.owner, "spec", "serviceName")
        if pod.kind == "StatefulSet" and rendering.find("Service", governing, pod.namespace) is None:
            yield Problem(
                pod.name,
                "spec.serviceName",
                f"no Service {governing or ''}; there are: {rendering.names('Service', pod.namespace)}",
            )


def _one_workload(
    rendering: Rendering,
    document: Document,
    where: str,
    selector: Mapping[str, Any],
    only: set[str] | None = None,
) -> Iterator[Problem]:
    """A selector must match pods, and those of one workload alone (`only`, where it is known which)."""
    found = rendering.selected(selector, namespace_of(document))
    names = {pod.name for pod in found}
    if not names or (only and not only <= names):
        yield Problem(
            name_of(document),
            where,
            f"{_selector(selector)} matches no pod{' of its own' * bool(only)}{_pods(rendering)}",
        )
    elif len(names) > 1:
        yield Problem(
            name_of(document),
            where,
            f"{_selector(selector)} matches pods of {' and '.join(sorted(names))}; narrow it to one",
        )


def _services(rendering: Rendering) -> Iterator[Problem]:
    for service in rendering.of("Service"):
        selector = at(service, "spec", "selector")
        if at(service, "spec", "type") == "ExternalName":
            continue
        yield from _one_workload(rendering, service, "spec.selector", {"matchLabels": selector})
        pods = rendering.selected({"matchLabels": selector}, namespace_of(service))
        for port in at(service, "spec", "ports") or ():
            where = f"spec.ports[{port.get('name', port['port'])}].targetPort"
            yield from _listen(pods, port.get("targetPort", port["port"]), name_of(service), where)


def _listen(pods: Iterable[Pod], port: Any, name: str, where: str) -> Iterator[Problem]:
    """Pods must have the port that something else counts on; None is any."""
    for pod in pods:
        if port is not None and not pod.has_port(port):
            yield Problem(name, where, f"{pod.name} has no port {port}; it has {pod.told_ports()}")


def fewest(rendering: Rendering, pod: Pod) -> int:
    """Return the fewest replicas that a workload runs with: its own number, or its autoscaler's least."""
    for scaler in scalers(rendering, pod.owner):
        key, default = ("minReplicaCount", 0) if scaler["kind"] == "ScaledObject" else ("minReplicas", 1)
        return int(scaler["spec"].get(key, default))
    return int(pod.owner["spec"].get("replicas", 1))


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


def _budgets(rendering: Rendering) -> Iterator[Problem]:
    budgets = list(rendering.of("PodDisruptionBudget"))
    for budget in budgets:
        selector = at(budget, "spec", "selector")
        yield from _one_workload(rendering, budget, "spec.selector", selector)
        for pod in rendering.selected(selector, namespace_of(budget)):
            replicas = fewest(rendering, pod)
            allowed = evictable(at(budget, "spec"), replicas)
            if replicas > 1 and allowed >= replicas:
                text = f"lets all {replicas} pods of {pod.name} go at once; maxUnavailable: 1 lets one go"
                yield Problem(name_of(budget), "spec", text)
            if replicas and allowed < 1:
                yield Problem(
                    name_of(budget),
                    "spec",
                    f"with {replicas} replicas of {pod.name} no pod may ever be evicted: a node cannot be "
                    "drained; maxUnavailable: 1 lets one go",
                )
    for pod in rendering.pods:
        own = [
            name_of(budget)
            for budget in budgets
            if namespace_of(budget) == pod.namespace and matches(at(budget, "spec", "selector"), pod.labels)
        ]
        if pod.kind in ("Deployment", "StatefulSet") and len(own) != 1:
            yield Problem(
                pod.name,
                "spec.template.metadata.labels",
                f"{len(own)} PodDisruptionBudgets match its pods ({', '.join(own) or 'none'}); one must",
            )


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


def _policies(rendering: Rendering) -> Iterator[Problem]:
    policies = list(rendering.of("NetworkPolicy"))
    for policy in policies:
        selected = rendering.selected(at(policy, "spec", "podSelector"), namespace_of(policy))
        if not selected:
            yield Problem(
                name_of(policy),
                "spec.podSelector",
                f"{_selector(at(policy, 'spec', 'podSelector'))} matches no pod{_pods(rendering)}",
            )
        yield from _policy_ports(rendering, policy, selected)
        if "Ingress" in _directions(policy):
            for pod in selected:
                yield from _ingress(pod, policy)
    for pod in rendering.pods:
        own = [
            policy
            for policy in policies
            if namespace_of(policy) == pod.namespace
            and matches(at(policy, "spec", "podSelector"), pod.labels)
        ]
        if not any("Ingress" in _directions(policy) for policy in own):
            yield Problem(
                pod.name,
                "spec.template.metadata.labels",
                f"no NetworkPolicy selects its pods for Ingress ({told(pod.labels)}): everyone reaches them",
            )
        yield from _egress(rendering, pod, [policy for policy in own if "Egress" in _directions(policy)])
        yield from _entry(rendering, pod, [policy for policy in own if "Ingress" in _directions(policy)])


def _directions(policy: Document) -> list[str]:
    given = at(policy, "spec", "policyTypes")
    return list(given) if given else ["Ingress"] + ["Egress"] * bool(at(policy, "spec", "egress"))


def _policy_ports(rendering: Rendering, policy: Document, selected: Iterable[Pod]) -> Iterator[Problem]:
    for index, rule in enumerate(at(policy, "spec", "ingress") or ()):
        for port in rule.get("ports") or ():
            with_ports = [pod for pod in selected if pod.ports]
            yield from _listen(with_ports, port.get("port"), name_of(policy), f"spec.ingress[{index}].ports")
    for index, rule in enumerate(at(policy, "spec", "egress") or ()):
        for peer in rule.get("to") or ():
            if peer.keys() != {"podSelector"}:
                continue
            found = rendering.selected(peer["podSelector"], namespace_of(policy))
            where = f"spec.egress[{index}]"
            if not found and any(pod.component == ENGINE for pod in rendering.pods):
                yield Problem(
                    name_of(policy),
                    f"{where}.to",
                    f"{_selector(peer['podSelector'])} matches no pod{_pods(rendering)}",
                )
            for port in rule.get("ports") or ():
                yield from _listen(found, port.get("port"), name_of(policy), f"{where}.ports")


def _ingress(pod: Pod, policy: Document) -> Iterator[Problem]:
    """Engines take work from gateways and the sweep alone; nothing takes it from everyone."""
    for index, rule in enumerate(at(policy, "spec", "ingress") or ()):
        where = f"spec.ingress[{index}].from"
        peers = rule.get("from") or ()
        if not peers:
            yield Problem(name_of(policy), where, f"is empty, which lets everyone in to {pod.name}")
        for number, peer in enumerate(peers):
            if pod.component == ENGINE and not _may_enter(peer):
                yield Problem(
                    name_of(policy),
                    f"{where}[{number}]",
                    f"lets in to {pod.name} others than pods of this namespace labelled {COMPONENT}: gateway "
                    "or sweep, and Prometheus (a namespaceSelector and app.kubernetes.io/name: prometheus)",
                )
            elif not any(at(peer, key) for key in ("podSelector", "namespaceSelector", "ipBlock")):
                yield Problem(
                    name_of(policy),
                    f"{where}[{number}]",
                    f"selects everything: whom should {pod.name} take work from?",
                )


def _may_enter(peer: Mapping[str, Any]) -> bool:
    if "namespaceSelector" in peer:
        return is_prometheus(peer)
    labels = wanted(peer.get("podSelector") or {})
    return "ipBlock" not in peer and labels.get(COMPONENT, {""}) <= _SENDERS


def is_prometheus(peer: Mapping[str, Any]) -> bool:
    """Whether a policy's peer is a namespace's Prometheus, and nothing else."""
    labels = wanted(peer.get("podSelector") or {})
    spaces = wanted(peer.get("namespaceSelector") or {})
    return _NAMESPACE in spaces and any(
        labels.get(key, {""}) <= values for key, values in _PROMETHEUS.items()
    )


def wanted(selector: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the values that a label selector demands, by label; what it only excludes is not among them."""
    found = {key: {value} for key, value in (selector.get("matchLabels") or {}).items()}
    for wish in selector.get("matchExpressions") or ():
        if wish["operator"] == "In":
            values = set(wish.get("values") or ())
            found[wish["key"]] = found.get(wish["key"], values) & values
    return found


def _egress(rendering: Rendering, pod: Pod, policies: Iterable[Document]) -> Iterator[Problem]:
    """Where a policy closes what leaves a pod, another must let out what it needs."""
    rules = [rule for policy in policies for rule in at(policy, "spec", "egress") or ()]
    if not policies:
        return
    for protocol in ("UDP", "TCP"):
        if not any(opens(rule, {_DNS_PORT}, protocol) for rule in rules):
            yield Problem(
                pod.name,
                "spec.template.metadata.labels",
                f"its NetworkPolicies let no DNS out ({protocol} port 53)",
            )
    if pod.component not in _SENDERS:
        return
    for engine in rendering.pods:
        if (
            engine.component == ENGINE
            and engine.namespace == pod.namespace
            and not any(
                opens(rule, {*engine.ports, *engine.ports.values()}, "TCP") and _leads_to(rule, engine)
                for rule in rules
            )
        ):
            yield Problem(
                pod.name,
                "spec.template.metadata.labels",
                f"its NetworkPolicies do not let it out to {engine.name}",
            )


def _entry(rendering: Rendering, pod: Pod, policies: Iterable[Document]) -> Iterator[Problem]:
    """Where policies close what comes to a pod, one must let in who has to reach it."""
    rules = [
        rule
        for policy in policies
        for rule in at(policy, "spec", "ingress") or ()
        if opens(rule, {*pod.ports, *pod.ports.values()}, "TCP")
    ]
    where = "spec.template.metadata.labels"
    if pod.component == GATEWAY and policies and not any(rule.get("from") for rule in rules):
        yield Problem(pod.name, where, "its NetworkPolicies let nobody in to its ports")
    if pod.component == ENGINE and policies:
        for sender in rendering.pods:
            if (
                sender.component in _SENDERS
                and sender.namespace == pod.namespace
                and not any(_leads_to(rule, sender, "from") for rule in rules)
            ):
                yield Problem(pod.name, where, f"its NetworkPolicies do not let {sender.name} in")


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


def _leads_to(rule: Mapping[str, Any], pod: Pod, key: str = "to") -> bool:
    peers = rule.get(key)
    return not peers or any(
        "podSelector" in peer and matches(peer["podSelector"], pod.labels) for peer in peers
    )


def _monitors(rendering: Rendering) -> Iterator[Problem]:
    for monitor in rendering.of("PodMonitor"):
        pods = [
            pod
            for space in watched(rendering, monitor)
            for pod in rendering.selected(at(monitor, "spec", "selector"), space)
        ]
        yield from _watches(rendering, monitor, pods, "podMetricsEndpoints")
        for index, endpoint in enumerate(at(monitor, "spec", "podMetricsEndpoints") or ()):
            port = endpoint.get("port", endpoint.get("portNumber", endpoint.get("targetPort", "")))
            yield from _listen(pods, port, name_of(monitor), f"spec.podMetricsEndpoints[{index}].port")
    for monitor in rendering.of("ServiceMonitor"):
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
                    yield Problem(
                        name_of(monitor),
                        f"spec.endpoints[{index}].port",
                        f"{name_of(service)} has no port {endpoint.get('port')}; it has {ports}",
                    )


def _watches(
    rendering: Rendering, monitor: Document, found: Iterable[object], endpoints: str
) -> Iterator[Problem]:
    if not at(monitor, "spec", endpoints):
        yield Problem(name_of(monitor), f"spec.{endpoints}", "is empty: nothing is read")
    if not found:
        selector = at(monitor, "spec", "selector")
        yield Problem(
            name_of(monitor), "spec.selector", f"{_selector(selector)} matches nothing{_pods(rendering)}"
        )


def watched(rendering: Rendering, monitor: Document) -> set[str]:
    """Return the namespaces that a monitor looks into."""
    chosen = at(monitor, "spec", "namespaceSelector")
    if chosen.get("any"):
        return set(map(namespace_of, rendering.documents))
    return set(chosen.get("matchNames") or [namespace_of(monitor)])


def _backends(rendering: Rendering) -> Iterator[Problem]:
    for ingress in rendering.of("Ingress"):
        for where, service in ingresses(ingress):
            port = at(service, "port")
            yield from _backend(
                rendering, ingress, where, service.get("name"), port.get("name", port.get("number"))
            )
    for route in rendering.of("HTTPRoute"):
        for key in ("parentRefs", "rules"):
            if not at(route, "spec", key):
                yield Problem(name_of(route), f"spec.{key}", "is empty: nothing comes through")
        for index, rule in enumerate(at(route, "spec", "rules") or ()):
            if not rule.get("backendRefs") and not rule.get("filters"):
                yield Problem(
                    name_of(route), f"spec.rules[{index}].backendRefs", "is empty: it leads nowhere"
                )
            for number, backend in enumerate(rule.get("backendRefs") or ()):
                where = f"spec.rules[{index}].backendRefs[{number}]"
                yield from _backend(rendering, route, where, backend.get("name"), backend.get("port"))


def ingresses(ingress: Document) -> Iterator[tuple[str, Document]]:
    """Yield the Services that an Ingress leads to, and where it names them."""
    backends = [("spec.defaultBackend", at(ingress, "spec", "defaultBackend"))]
    for index, rule in enumerate(at(ingress, "spec", "rules") or ()):
        for path in at(rule, "http", "paths") or ():
            where = f"spec.rules[{rule.get('host', index)}].http.paths[{path.get('path')}].backend"
            backends.append((where, path.get("backend") or {}))
    for where, backend in backends:
        if service := at(backend, "service"):
            yield where, service


def _backend(
    rendering: Rendering, document: Document, where: str, name: object, port: object
) -> Iterator[Problem]:
    service = rendering.find("Service", name, namespace_of(document))
    if service is None:
        there = rendering.names("Service", namespace_of(document))
        yield Problem(name_of(document), where, f"no Service {name}; there are: {there}")
    elif all(port not in (one.get("name"), one["port"]) for one in at(service, "spec", "ports") or ()):
        ports = ", ".join(f"{one.get('name')} ({one['port']})" for one in at(service, "spec", "ports") or ())
        yield Problem(name_of(document), where, f"Service {name} has no port {port}; it has {ports}")


def _selector(selector: Mapping[str, Any]) -> str:
    return told({key: value for key, value in selector.items() if value}) if selector else "{}"


def _pods(rendering: Rendering) -> str:
    return "; there are " + ", ".join(f"{pod.name} ({told(pod.labels)})" for pod in rendering.pods)
