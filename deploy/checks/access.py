"""Who gets in, and what gets out: API keys, the admin port, and gateways' own ways to the outside."""

from __future__ import annotations

import itertools
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deploy.checks.network import ingresses, is_prometheus, opens, watched
from deploy.checks.objects import Problem, at, matches, name_of, namespace_of
from deploy.checks.pods import quantity
from deploy.checks.served import ROUTES, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Document, Pod, Rendering
    from deploy.checks.served import Served

_EVERYWHERE, _METADATA = "/0", "169.254.0.0/16"
_WEB = {80, 443}
_GRPC_PORT = 4317
# What bodies under way may take of a pod's memory: the rest is the process, and what it makes of them.
_MEMORY_SHARE = 0.5
_OTHERS = 0o007


def check(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Yield what lets in who should not get in, and what keeps out who should."""
    yield from _keys(rendering, served)
    if served.config.server.admin_port is None:
        yield from _without_admin_port(rendering, served)
    else:
        yield from _admin_port(rendering, served, served.config.server.admin_port)
    yield from _images(rendering, served)
    yield from _tracing(rendering, served)
    limit, memory = served.config.limits.inflight_bytes, _memory(served)
    if limit and memory and limit > memory * _MEMORY_SHARE:
        yield Problem(
            name_of(served.config_map),
            f"data[{ROUTES}].limits.inflight_bytes",
            f"{limit} bytes, and the pod may have {memory:.0f} for everything; unset, it is a share of that",
        )


def _memory(served: Served) -> float:
    return float(quantity(at(served.container.spec, "resources", "limits", "memory") or "0"))


def _keys(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Where there is a way in there must be keys, and those in a Secret's file."""
    name, where = name_of(served.config_map), f"data[{ROUTES}].auth.keys_file"
    file = served.config.auth.keys_file
    if not file:
        if ways := sorted({name_of(one) for one in _ways_in(rendering, served)}):
            yield Problem(
                name, where, f"is not set: whoever comes by {', '.join(ways)} may use what costs GPUs"
            )
        return
    folder = (option(served.container.args, "--config") or "").rpartition("/")[0]
    path = PurePosixPath(folder, file)
    mount = next(
        (
            mount
            for mount in served.container.spec.get("volumeMounts") or ()
            if path.is_relative_to(mount.get("mountPath", ""))
        ),
        None,
    )
    volumes = served.pod.spec.get("volumes") or ()
    volume: Document = next((one for one in volumes if mount and one["name"] == mount["name"]), {})
    secret = at(volume, "secret")
    if not mount or not secret:
        yield Problem(name, where, f"{path} is in no Secret that is mounted")
        return
    where = f"{served.pod.path}.volumes[{volume['name']}]"
    if "subPath" in mount or "subPathExpr" in mount:
        yield Problem(served.pod.name, where, "by subPath: gateways would never see the keys change")
        return
    items = secret.get("items")
    inside = str(path.relative_to(mount["mountPath"]))
    item = next((one for one in items or () if one.get("path") == inside), None)
    if items and item is None:
        yield Problem(served.pod.name, where, f"has no {inside}, which auth.keys_file names")
        return
    mode = (item or {}).get("mode", secret.get("defaultMode", 0o644))
    group = at(served.pod.spec, "securityContext", "fsGroup")
    if mode & _OTHERS or not group:
        yield Problem(
            served.pod.name,
            where,
            f"mode {mode:04o}, fsGroup {group or 'not set'}; 0440 and the process's group keep others out",
        )
    yield from _elsewhere(rendering, served, secret.get("secretName"), (item or {}).get("key", inside))


def _elsewhere(rendering: Rendering, served: Served, name: str, key: str) -> Iterator[Problem]:
    """The clients' keys are in the gateway's file alone: in no environment, and in no other pod."""
    for pod in rendering.pods:
        for volume in pod.spec.get("volumes") or () if pod is not served.pod else ():
            projected = at(volume, "projected", "sources") or ()
            for secret in (at(volume, "secret"), *(at(source, "secret") for source in projected)):
                items = [item.get("key") for item in secret.get("items") or ()]
                if secret.get("secretName", secret.get("name")) == name and (not items or key in items):
                    yield _shared(pod, f"{pod.path}.volumes[{volume['name']}]", name, key)
        for container in pod.containers:
            for index, source in enumerate(container.spec.get("envFrom") or ()):
                if at(source, "secretRef", "name") == name:
                    yield _shared(pod, f"{container.where}.envFrom[{index}]", name, key)
            for variable, value in container.env.items():
                reference = at(value, "valueFrom", "secretKeyRef")
                if (at(reference, "name"), at(reference, "key")) == (name, key):
                    yield _shared(pod, f"{container.where}.env[{variable}]", name, key)


def _shared(pod: Pod, where: str, name: str, key: str) -> Problem:
    return Problem(pod.name, where, f"has {key} of Secret {name}, which are for the gateway's file alone")


def _ways_in(rendering: Rendering, served: Served) -> Iterator[Document]:
    """What leads to the gateway from outside the cluster."""
    own = {one["metadata"]["name"] for one, _ in _services(rendering, served)}
    for service, _ in _services(rendering, served):
        if at(service, "spec", "type") in ("LoadBalancer", "NodePort"):
            yield service
    for ingress in rendering.of("Ingress"):
        if any(backend.get("name") in own for _, backend in ingresses(ingress)):
            yield ingress
    for route in rendering.of("HTTPRoute"):
        rules = at(route, "spec", "rules") or ()
        backends = itertools.chain.from_iterable(rule.get("backendRefs") or () for rule in rules)
        if any(backend.get("name") in own for backend in backends):
            yield route


def _services(rendering: Rendering, served: Served) -> Iterator[tuple[Document, list[Any]]]:
    """Services that lead to the gateway, and the ports there that they lead to."""
    for service in rendering.of("Service"):
        selector = {"matchLabels": at(service, "spec", "selector")}
        if served.pod in rendering.selected(selector, namespace_of(service)):
            ports = at(service, "spec", "ports") or ()
            yield service, [port.get("targetPort", port["port"]) for port in ports]


def _monitors(rendering: Rendering, served: Served) -> Iterator[tuple[Document, str, Any]]:
    for monitor in rendering.of("PodMonitor"):
        pod = served.pod
        selected = matches(at(monitor, "spec", "selector"), pod.labels)
        if selected and pod.namespace in watched(rendering, monitor):
            for index, endpoint in enumerate(at(monitor, "spec", "podMetricsEndpoints") or ()):
                port = endpoint.get("port", endpoint.get("portNumber", endpoint.get("targetPort", "")))
                yield monitor, f"spec.podMetricsEndpoints[{index}]", port


def _without_admin_port(rendering: Rendering, served: Served) -> Iterator[Problem]:
    if served.config.auth.keys_file:
        for monitor, where, _ in _monitors(rendering, served):
            yield Problem(
                name_of(monitor),
                where,
                "/metrics wants a key; with server.admin_port it has a port of its own",
            )


def _admin_port(rendering: Rendering, served: Served, number: int) -> Iterator[Problem]:
    """Prometheus alone reaches the admin port, and by it."""
    pod, container = served.pod, served.container
    names = {number, *(name for name, port in container.ports.items() if port == number)}
    if number not in container.ports.values() or option(container.args, "--port") == str(number):
        yield Problem(
            pod.name, f"{container.where}.ports", f"{number} must be one by itself: it is server.admin_port"
        )
        return
    for service, ports in _services(rendering, served):
        if names & set(ports):
            yield Problem(
                name_of(service), "spec.ports", f"leads to the admin port {number}, which asks for no key"
            )
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if at(container.spec, probe, "httpGet").get("port") in names:
            text = "asks at the admin port, which also answers where clients are refused"
            yield Problem(pod.name, f"{container.where}.{probe}", text)
    reached = False
    for policy in rendering.of("NetworkPolicy"):
        selected = matches(at(policy, "spec", "podSelector"), pod.labels)
        if not selected or namespace_of(policy) != pod.namespace:
            continue
        for index, rule in enumerate(at(policy, "spec", "ingress") or ()):
            if not opens(rule, names, "TCP"):
                continue
            peers = rule.get("from") or ()
            reached = reached or any(map(is_prometheus, peers))
            if not all(map(is_prometheus, peers)):
                yield Problem(
                    name_of(policy),
                    f"spec.ingress[{index}]",
                    f"lets others than Prometheus in to the admin port {number}, which asks for no key",
                )
    for monitor, where, port in _monitors(rendering, served):
        if port not in names:
            text = f"/metrics is at the admin port {number}; at {port} there is none"
            yield Problem(name_of(monitor), f"{where}.port", text)
        if not reached:
            text = f"no NetworkPolicy lets Prometheus in to the admin port {number}"
            yield Problem(pod.name, "spec.template.metadata.labels", text)


def _images(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Gateways that fetch images need a way out, and others must have none."""
    hosts, found = served.config.remote_images.allow_hosts, False
    for policy, where, rule in _ways_out(rendering, served):
        if not any(opens(rule, {port}, "TCP") for port in _WEB):
            continue
        found = True
        for peer in rule.get("to") or [{"ipBlock": {"cidr": _EVERYWHERE}}]:
            block = peer.get("ipBlock") or {}
            if not str(block.get("cidr", "")).endswith(_EVERYWHERE):
                continue
            if not hosts:
                text = "lets gateways out to everywhere, and remote_images.allow_hosts lists no host"
                yield Problem(name_of(policy), where, text)
            elif ":" not in block["cidr"] and _METADATA not in (block.get("except") or ()):
                text = f"must except {_METADATA}, where clouds give away credentials"
                yield Problem(name_of(policy), where, text)
    if hosts and not found:
        yield Problem(
            name_of(served.config_map),
            f"data[{ROUTES}].remote_images.allow_hosts",
            "no NetworkPolicy lets gateways out to fetch images; components/remote-images does",
        )


def _tracing(rendering: Rendering, served: Served) -> Iterator[Problem]:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        endpoint = str(served.container.env.get(name, {}).get("value") or "")
        if not endpoint:
            continue
        where = f"{served.container.where}.env[{name}]"
        try:
            url = urlsplit(endpoint)
            port = url.port or {"http": 80, "https": 443}[url.scheme]
        except (ValueError, KeyError):
            yield Problem(served.pod.name, where, f"{endpoint} is no http(s) URL")
            continue
        if port == _GRPC_PORT:
            yield Problem(
                served.pod.name, where, f"{port} is gRPC's; spans go out by HTTP, to port 4318 mostly"
            )
        if not any(opens(rule, {port}, "TCP") for _, _, rule in _ways_out(rendering, served)):
            text = f"no NetworkPolicy lets gateways out to port {port}; components/tracing does for 4318"
            yield Problem(served.pod.name, where, text)


def _ways_out(rendering: Rendering, served: Served) -> Iterator[tuple[Document, str, Document]]:
    for policy in rendering.of("NetworkPolicy"):
        selected = matches(at(policy, "spec", "podSelector"), served.pod.labels)
        if selected and namespace_of(policy) == served.pod.namespace:
            for index, rule in enumerate(at(policy, "spec", "egress") or ()):
                yield policy, f"spec.egress[{index}]", rule
