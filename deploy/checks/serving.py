"""The gateway's configuration against what is around it: its pods, their end, what is in front."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from typing import TYPE_CHECKING, Any

from deploy.checks import access, engines, series
from deploy.checks.network import backends, bounds, evictable, fewest, scalers
from deploy.checks.objects import ENGINE, GATEWAY, POOL, SWEEP, Problem, at, name_of, named
from deploy.checks.served import (
    GRACE_S,
    ROUTES,
    Served,
    files_of,
    mounted,
    option,
    pre_stop,
    read,
    secrets_of,
    variables_of,
)
from gateway.cli import parser
from gateway.config import EMBEDDED
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Container, Document, Findings, Pod, Rendering

# After the drain the server takes this long at most to send the last bytes (gateway.server.listen).
LAST_BYTES_S = 5
# What an end takes beyond its parts.
GATEWAY_MARGIN_S = 5

# What `kubectl apply` can keep of an object in its annotation.
_APPLIED_BYTES = 256 * 1024
_DURATION = re.compile(r"([0-9]+)(h|ms|m|s)")
# What is for the operator, on the port that clients reach.
_PAGES = ("/metrics", "/status")
_NGINX = "nginx.ingress.kubernetes.io/"


def check(rendering: Rendering) -> Iterator[Problem]:
    """Yield what is wrong with the configuration, or with something else in its light."""
    for document in rendering.documents:
        yield from named(name_of(document), _applied(document))
    found: list[Served] = []
    for config_map in rendering.of("ConfigMap"):
        if ROUTES in at(config_map, "data"):
            yield from _routes(rendering, config_map, found)
    for pod in rendering.pods:
        for container in pod.containers if pod.component in (GATEWAY, SWEEP) else ():
            yield from named(pod.name, _command(pod, container))
            if container.args[:1] == ["sweep"]:
                yield from named(pod.name, _extras(container, "sweep"))
    gateways = [served for served in found if served.pod.component == GATEWAY]
    for served in gateways:
        yield from named(name_of(served.config_map), _config(served))
        yield from named(served.pod.name, _gateway(rendering, served))
        yield from _replicas(rendering, served)
        yield from access.check(rendering, served)
        yield from engines.check(rendering, served)
        yield from _in_front(rendering, served)
        yield from _queries(rendering, served)
    if not gateways:
        yield from _unserved(rendering)
        return
    known = {pod.name for served in found for _, _, pod in engines.reached(rendering, served)}
    for pod in rendering.pods:
        if pod.component == ENGINE and pod.name not in known:
            yield Problem(pod.name, "spec", f"no pool of a {ROUTES} leads to these engines")


def _applied(document: Document) -> Findings:
    if document.get("kind") == "Secret" and (document.get("data") or document.get("stringData")):
        yield "data", "a secret has no place in a rendering: `kubectl create secret` makes it"
    size = len(json.dumps(document, ensure_ascii=False).encode())
    if size > _APPLIED_BYTES:
        yield "data", f"{size} bytes; `kubectl apply` takes objects of up to {_APPLIED_BYTES}"


def _unserved(rendering: Rendering) -> Iterator[Problem]:
    """Gateways without a configuration; one that is invalid has its problems already."""
    mounting = {
        pod.name
        for config_map in rendering.of("ConfigMap")
        if ROUTES in at(config_map, "data")
        for pod, _, _ in mounted(rendering, config_map)
    }
    for pod in rendering.pods:
        if pod.component == GATEWAY and pod.name not in mounting:
            yield Problem(pod.name, f"{pod.path}.volumes", f"no ConfigMap with a {ROUTES} is mounted")


def _routes(rendering: Rendering, config_map: Document, found: list[Served]) -> Iterator[Problem]:
    """Check one configuration in each container that mounts it; where it is valid it is added to `found`."""
    name = name_of(config_map)
    if config_map.get("immutable"):
        yield Problem(name, "immutable", "is true: running gateways could not take a change over")
    mounts = list(mounted(rendering, config_map))
    if not mounts:
        yield Problem(name, f"data[{ROUTES}]", "no pod mounts it")
    for pod, container, mount in mounts:
        yield from named(pod.name, _mount(container, mount))
        try:
            files = files_of(rendering, pod, mount["name"])
            config = read(frozenset(files.items()), frozenset(variables_of(container).items()))
        except ConfigError as error:
            yield from named(name, [(f"data[{ROUTES}]", line) for line in str(error).splitlines()])
        else:
            found.append(Served(pod, container, config_map, config))


def _mount(container: Container, mount: Document) -> Findings:
    if "subPath" in mount or "subPathExpr" in mount:
        where = f"{container.where}.volumeMounts[{mount['name']}]"
        yield where, "by subPath: the file would never follow a change of the ConfigMap"
    file, given = f"{mount.get('mountPath', '').rstrip('/')}/{ROUTES}", option(container.args, "--config")
    if given != file:
        yield f"{container.where}.args", f"--config is {given}; the file is at {file}"


def _config(served: Served) -> Findings:
    for pool, settings in served.config.pools.items():
        if settings.api_key and settings.api_key not in secrets_of(served.container):
            text = "must come from a Secret, as ${ENGINE_KEY:-} does, and stand in no manifest"
            yield f"data[{ROUTES}].pools.{pool}.api_key", text
    drain_s = served.config.server.drain_s
    if drain_s < served.life_s:
        text = f"{drain_s:g} s would cut requests off in an update: {served.life_text}"
        yield f"data[{ROUTES}].server.drain_s", text


def _gateway(rendering: Rendering, served: Served) -> Findings:
    pod, container, server = served.pod, served.container, served.config.server
    strategy, replicas = at(pod.owner, "spec", "strategy"), fewest(rendering, pod)
    gone = {"maxUnavailable": at(strategy, "rollingUpdate", "maxUnavailable") or 0}
    if strategy.get("type") == "Recreate" or evictable(gone, replicas, math.floor) >= max(replicas, 1):
        text = "an update ends every gateway before another one is ready; maxUnavailable: 0 and maxSurge: 1"
        yield "spec.strategy", text
    sleep = pre_stop(container)
    if not sleep:
        yield f"{container.where}.lifecycle.preStop.sleep", "is missing: how long balancers need"
    needed = math.ceil(sleep + server.linger_s + server.drain_s + LAST_BYTES_S + GATEWAY_MARGIN_S)
    grace = pod.spec.get("terminationGracePeriodSeconds", GRACE_S)
    if grace < needed:
        text = f"{grace} s; an end takes up to {needed} s: preStop {sleep} + linger_s {server.linger_s:g} + "
        text += (
            f"drain_s {server.drain_s:g} + {LAST_BYTES_S} for the last bytes + {GATEWAY_MARGIN_S} to spare"
        )
        yield f"{pod.path}.terminationGracePeriodSeconds", text
    if any(EMBEDDED in pool.engines for pool in served.config.pools.values()):
        yield from _extras(container, "embedded engine")


def _replicas(rendering: Rendering, served: Served) -> Iterator[Problem]:
    pod, shares = served.pod, served.config.server.replicas
    own = scalers(rendering, pod.owner)
    most = max((bounds(scaler)[1] for scaler in own), default=pod.owner["spec"].get("replicas", 1))
    if most > shares:
        text = f"up to {most} gateways, and engines are shared out among {shares}: server.replicas"
        yield Problem(name_of(own[0]) if own else pod.name, "spec", text)


def _extras(container: Container, what: str) -> Findings:
    """The image must be the one of target `embedded`; a digest does not tell."""
    image = str(container.spec.get("image", ""))
    if "@" not in image and not image.endswith("-embedded"):
        yield f"{container.where}.image", f"{image} has no {what}; the tag '-embedded' has"


def _command(pod: Pod, container: Container) -> Findings:
    """The arguments of `ocr-gateway`, the image's entry point, are read by its own parser."""
    if "command" in container.spec:
        return
    where, output = f"{container.where}.args", io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            options = parser().parse_args(container.args)
    except SystemExit:
        yield where, (output.getvalue().strip() or "no command").splitlines()[-1]
        return
    if pod.component != GATEWAY:
        return
    if container.args[0] != "serve":
        yield f"{where}[0]", f"{container.args[0]} must be serve"
    elif options.host not in ("0.0.0.0", "::"):  # noqa: S104 - a pod's own addresses
        yield where, f"--host {options.host} must be 0.0.0.0 (or ::)"
    elif options.port not in container.ports.values():
        yield where, f"--port {options.port} is none of the container's: {container.ports}"


def _in_front(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Ingresses and routes before the gateway must let through what it takes, for as long as it may take."""
    own = {service["metadata"]["name"] for service in served.services(rendering)}
    for document in rendering.of("Ingress", "HTTPRoute"):
        if any(name in own for _, name, _ in backends(document)):
            findings = _ingress if document["kind"] == "Ingress" else _http_route
            yield from named(name_of(document), findings(document, served, own))


def _ingress(ingress: Document, served: Served, own: set[str]) -> Findings:
    for rule in at(ingress, "spec", "rules") or ():
        for path in at(rule, "http", "paths") or ():
            if at(path, "backend", "service").get("name") in own:
                yield from _published("spec.rules", str(path.get("path", "/")))
    if "nginx" not in (at(ingress, "spec", "ingressClassName") or "nginx"):
        return
    annotations, limit = at(ingress, "metadata", "annotations"), served.config.limits.body_bytes
    body, buffering, timeout = (
        (f"metadata.annotations[{_NGINX}{key}]", annotations.get(_NGINX + key))
        for key in ("proxy-body-size", "proxy-buffering", "proxy-read-timeout")
    )
    if size(str(body[1] or "1m")) < limit:
        yield body[0], f"{body[1] or 'not set: 1m'}; a request may have {limit} bytes (limits.body_bytes)"
    if buffering[1] == "on":
        yield buffering[0], "holds streams back until they end; off"
    if seconds(f"{timeout[1] or 60}s") < served.life_s:
        yield timeout[0], f"{timeout[1] or 'not set: 60'} s; {served.life_text}"


def _http_route(route: Document, served: Served, own: set[str]) -> Findings:
    for index, rule in enumerate(at(route, "spec", "rules") or ()):
        if not own & {backend.get("name") for backend in rule.get("backendRefs") or ()}:
            continue
        for match in rule.get("matches") or [{}]:
            yield from _published(f"spec.rules[{index}].matches", at(match, "path", "value") or "/")
        for key in ("request", "backendRequest"):
            limit: Any = at(rule, "timeouts", key) or None
            if (limit or key == "request") and seconds(limit) < served.life_s:
                text = f"{limit or 'the implementation decides'}; {served.life_text}"
                yield f"spec.rules[{index}].timeouts.{key}", text


def _published(where: str, path: str) -> Findings:
    if pages := [page for page in _PAGES if page.startswith(path)]:
        yield where, f"{path} publishes {' and '.join(pages)}, too; clients need /v1 alone"


def _queries(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Autoscalers must ask for the model, pools and routes that there are."""
    config = served.config
    there = {"model": [config.model], "pool": list(config.pools), "route": list(config.routes)}
    pools = {
        name_of(scaler): pod.labels.get(POOL)
        for pod in rendering.pods
        for scaler in scalers(rendering, pod.owner)
    }
    for query in series.of_scalers(rendering):
        own = pools.get(query.name)
        with contextlib.suppress(ValueError):  # what is no PromQL is a problem of its own
            for label, value in sorted(series.names(query.expr).values):
                if label == "pool" and own not in (None, value):
                    yield Problem(query.name, query.where, f"asks for pool {value}, and scales pool {own}")
                if value not in there.get(label, [value]):
                    known = ", ".join(there[label])
                    text = f"no {label} {value} in {ROUTES}, which has {known}"
                    yield Problem(query.name, query.where, text)


def size(text: str) -> float:
    """Read nginx's size, such as 32m; 0 is no limit."""
    found = re.fullmatch(r"([0-9]+)([kKmMgG]?)", text)
    if found is None:
        return 0
    return int(found[1]) * 1024 ** " kmg".index(found[2].lower() or " ") or math.inf


def seconds(text: str | None) -> float:
    """Read the Gateway API's duration, such as 1h30m; 0s is no limit, and none given counts as none."""
    parts = _DURATION.findall(text or "")
    total = sum(int(number) * {"h": 3600, "m": 60, "s": 1, "ms": 0.001}[unit] for number, unit in parts)
    return total or (math.inf if parts else 0)
