"""Who gets in, and what gets out: API keys, the admin port, and gateways' own ways to the outside."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deploy.checks.network import backends, is_prometheus, monitor_ports, opens, selecting, watched
from deploy.checks.objects import Problem, at, matches, name_of, named
from deploy.checks.pods import quantity
from deploy.checks.served import ROUTES, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Document, Findings, Rendering
    from deploy.checks.served import Served

_EVERYWHERE, _METADATA = "/0", "169.254.0.0/16"
_WEB = {80, 443}
_GRPC_PORT = 4317
# What bodies under way may take of a pod's memory: the rest is the process, and what it makes of them.
_MEMORY_SHARE = 0.5
_OTHERS = 0o007


def check(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Yield what lets in who should not get in, and what keeps out who should."""
    yield from named(name_of(served.config_map), _config(rendering, served))
    yield from _keys(rendering, served)
    yield from _monitored(rendering, served)
    if served.config.server.admin_port is not None:
        yield from _admin_port(rendering, served)
    yield from _images(rendering, served)
    yield from named(served.pod.name, _tracing(rendering, served))


def _config(rendering: Rendering, served: Served) -> Findings:
    config, memory = served.config, at(served.container.spec, "resources", "limits", "memory")
    ways = sorted({name_of(one) for one in _ways_in(rendering, served)})
    if ways and not config.auth.keys_file:
        text = f"is not set: whoever comes by {', '.join(ways)} may use what costs GPUs"
        yield f"data[{ROUTES}].auth.keys_file", text
    limit, has = config.limits.inflight_bytes, float(quantity(memory or "0"))
    if limit and has and limit > has * _MEMORY_SHARE:
        text = f"{limit} bytes, and the pod may have {has:.0f} for everything; unset, it is a share of that"
        yield f"data[{ROUTES}].limits.inflight_bytes", text


def _keys(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """The clients' keys are in a Secret's file, which only the gateway has."""
    file = served.config.auth.keys_file
    if not file:
        return
    path = PurePosixPath((option(served.container.args, "--config") or "").rpartition("/")[0], file)
    mounts = served.container.spec.get("volumeMounts") or ()
    mount: Document = next((one for one in mounts if path.is_relative_to(one.get("mountPath", ""))), {})
    volumes = served.pod.spec.get("volumes") or ()
    volume: Document = next((one for one in volumes if one["name"] == mount.get("name")), {})
    secret = at(volume, "secret")
    if not secret:
        text = f"{path} is in no Secret that is mounted"
        yield Problem(name_of(served.config_map), f"data[{ROUTES}].auth.keys_file", text)
        return
    inside = str(path.relative_to(mount["mountPath"]))
    items = secret.get("items") or [{"key": inside, "path": inside}]
    item = next((one for one in items if one.get("path") == inside), None)
    where = f"{served.pod.path}.volumes[{volume['name']}]"
    if "subPath" in mount or "subPathExpr" in mount:
        yield Problem(served.pod.name, where, "by subPath: gateways would never see the keys change")
    elif item is None:
        yield Problem(served.pod.name, where, f"has no {inside}, which auth.keys_file names")
    else:
        mode = item.get("mode", secret.get("defaultMode", 0o644))
        group = at(served.pod.spec, "securityContext", "fsGroup")
        if mode & _OTHERS or not group:
            text = (
                f"mode {mode:04o}, fsGroup {group or 'not set'}; 0440 and the process's group keep others out"
            )
            yield Problem(served.pod.name, where, text)
        name, key = secret.get("secretName"), item["key"]
        text = f"has {key} of Secret {name}, which are for the gateway's file alone"
        for pod, where in _uses(rendering, served, name, key):
            yield Problem(pod, where, text)


def _uses(rendering: Rendering, served: Served, name: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield pods that have a Secret's key, and where; the gateway's own volume apart."""
    for pod in rendering.pods:
        for volume in pod.spec.get("volumes") or () if pod is not served.pod else ():
            projected = at(volume, "projected", "sources") or ()
            for secret in (at(volume, "secret"), *(at(source, "secret") for source in projected)):
                items = [item.get("key") for item in secret.get("items") or ()]
                if secret.get("secretName", secret.get("name")) == name and (not items or key in items):
                    yield pod.name, f"{pod.path}.volumes[{volume['name']}]"
        for container in pod.containers:
            for index, source in enumerate(container.spec.get("envFrom") or ()):
                if at(source, "secretRef", "name") == name:
                    yield pod.name, f"{container.where}.envFrom[{index}]"
            for variable, value in container.env.items():
                reference = at(value, "valueFrom", "secretKeyRef")
                if (at(reference, "name"), at(reference, "key")) == (name, key):
                    yield pod.name, f"{container.where}.env[{variable}]"


def _ways_in(rendering: Rendering, served: Served) -> Iterator[Document]:
    """What leads to the gateway from outside the cluster."""
    services = served.services(rendering)
    own = {service["metadata"]["name"] for service in services}
    yield from (one for one in services if at(one, "spec", "type") in ("LoadBalancer", "NodePort"))
    for document in rendering.of("Ingress", "HTTPRoute"):
        if any(name in own for _, name, _ in backends(document)):
            yield document


def _monitored(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """PodMonitors ask where /metrics is, and are let in there."""
    number, pod = served.config.server.admin_port, served.pod
    rules = [rule for policy in selecting(rendering, pod) for rule in at(policy, "spec", "ingress") or ()]
    reached = any(
        opens(rule, served.admin, "TCP") and any(map(is_prometheus, _peers(rule))) for rule in rules
    )
    for monitor in rendering.of("PodMonitor"):
        selected = matches(at(monitor, "spec", "selector"), pod.labels)
        if not selected or pod.namespace not in watched(rendering, monitor):
            continue
        for where, port in monitor_ports(monitor):
            if number is None:
                if served.config.auth.keys_file:
                    text = "/metrics wants a key; with server.admin_port it has a port of its own"
                    yield Problem(name_of(monitor), where, text)
                continue
            if port not in served.admin:
                text = f"/metrics is at the admin port {number}; at {port} there is none"
                yield Problem(name_of(monitor), where, text)
            if not reached:
                text = f"no NetworkPolicy lets Prometheus in to the admin port {number}"
                yield Problem(pod.name, "spec.template.metadata.labels", text)


def _admin_port(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Prometheus alone reaches the admin port."""
    number, pod, container = served.config.server.admin_port, served.pod, served.container
    if number not in container.ports.values() or option(container.args, "--port") == str(number):
        text = f"{number} must be one by itself: it is server.admin_port"
        yield Problem(pod.name, f"{container.where}.ports", text)
        return
    for service in served.services(rendering):
        ports = at(service, "spec", "ports") or ()
        if any(port.get("targetPort", port["port"]) in served.admin for port in ports):
            text = f"leads to the admin port {number}, which asks for no key"
            yield Problem(name_of(service), "spec.ports", text)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if at(container.spec, probe, "httpGet").get("port") in served.admin:
            text = "asks at the admin port, which also answers where clients are refused"
            yield Problem(pod.name, f"{container.where}.{probe}", text)
    for policy in selecting(rendering, pod):
        for index, rule in enumerate(at(policy, "spec", "ingress") or ()):
            if opens(rule, served.admin, "TCP") and not all(map(is_prometheus, _peers(rule))):
                text = f"lets others than Prometheus in to the admin port {number}, which asks for no key"
                yield Problem(name_of(policy), f"spec.ingress[{index}]", text)


def _peers(rule: Document) -> list[Any]:
    return rule.get("from") or []


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
        text = "no NetworkPolicy lets gateways out to fetch images; components/remote-images does"
        where = f"data[{ROUTES}].remote_images.allow_hosts"
        yield Problem(name_of(served.config_map), where, text)


def _tracing(rendering: Rendering, served: Served) -> Findings:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        endpoint = str(served.container.env.get(name, {}).get("value") or "")
        if not endpoint:
            continue
        where = f"{served.container.where}.env[{name}]"
        try:
            url = urlsplit(endpoint)
            port = url.port or {"http": 80, "https": 443}[url.scheme]
        except (ValueError, KeyError):
            yield where, f"{endpoint} is no http(s) URL"
            continue
        if port == _GRPC_PORT:
            yield where, f"{port} is gRPC's; spans go out by HTTP, to port 4318 mostly"
        if not any(opens(rule, {port}, "TCP") for _, _, rule in _ways_out(rendering, served)):
            text = f"no NetworkPolicy lets gateways out to port {port}; components/tracing does for 4318"
            yield where, text


def _ways_out(rendering: Rendering, served: Served) -> Iterator[tuple[Document, str, Document]]:
    for policy in selecting(rendering, served.pod):
        for index, rule in enumerate(at(policy, "spec", "egress") or ()):
            yield policy, f"spec.egress[{index}]", rule
