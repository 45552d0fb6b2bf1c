"""The gateway's configuration against what is around it: its pods, their end, what is in front."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from typing import TYPE_CHECKING

from deploy.checks import access, autoscaling, engines, series
from deploy.checks.network import evictable, fewest, scalers
from deploy.checks.objects import ENGINE, GATEWAY, POOL, SWEEP, Problem, at, name_of, namespace_of
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

    from deploy.checks.objects import Container, Document, Pod, Rendering

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
    for secret in rendering.of("Secret"):
        if secret.get("data") or secret.get("stringData"):
            yield Problem(
                name_of(secret),
                "data",
                "a secret has no place in a rendering: `kubectl create secret` makes it",
            )
    for document in rendering.documents:
        held = len(json.dumps(document, ensure_ascii=False).encode())
        if held > _APPLIED_BYTES:
            text = f"{held} bytes; `kubectl apply` takes objects of up to {_APPLIED_BYTES}"
            yield Problem(name_of(document), "data", text)
    found: list[Served] = []
    for config_map in rendering.of("ConfigMap"):
        if ROUTES in at(config_map, "data"):
            yield from _routes(rendering, config_map, found)
    for pod in rendering.pods:
        if pod.component in (GATEWAY, SWEEP):
            for container in pod.containers:
                yield from _command(pod, container)
                if container.args[:1] == ["sweep"]:
                    yield from _extras(pod, container, "sweep")
    for served in found:
        if served.pod.component == GATEWAY:
            yield from _gateway(rendering, served)
            yield from access.check(rendering, served)
            yield from engines.check(rendering, served)
            yield from _in_front(rendering, served)
            yield from _asked(rendering, served)
    if not any(served.pod.component == GATEWAY for served in found):
        yield from _unserved(rendering)
        return
    known = {pod.name for served in found for _, _, pod in engines.reached(rendering, served)}
    for pod in rendering.pods:
        if pod.component == ENGINE and pod.name not in known:
            yield Problem(pod.name, "spec", f"no pool of a {ROUTES} leads to these engines")


def _unserved(rendering: Rendering) -> Iterator[Problem]:
    """Gateways without a configuration; one that is invalid has been told already."""
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
        where = f"{container.where}.volumeMounts[{mount['name']}]"
        if "subPath" in mount or "subPathExpr" in mount:
            yield Problem(
                pod.name, where, "by subPath: the file would never follow a change of the ConfigMap"
            )
        wanted = f"{mount.get('mountPath', '').rstrip('/')}/{ROUTES}"
        told = option(container.args, "--config")
        if told != wanted:
            yield Problem(pod.name, f"{container.where}.args", f"--config is {told}; the file is at {wanted}")
        try:
            files = files_of(rendering, pod, mount["name"])
            config = read(frozenset(files.items()), frozenset(variables_of(container).items()))
        except ConfigError as error:
            for line in str(error).splitlines():
                yield Problem(name, f"data[{ROUTES}]", line)
        else:
            found.append(Served(pod, container, config_map, config))


def _gateway(rendering: Rendering, served: Served) -> Iterator[Problem]:
    pod, container, config = served.pod, served.container, served.config
    server, name = config.server, name_of(served.config_map)
    for pool, settings in config.pools.items():
        if settings.api_key and settings.api_key not in secrets_of(container):
            text = "must come from a Secret, as ${ENGINE_KEY:-} does, and stand in no manifest"
            yield Problem(name, f"data[{ROUTES}].pools.{pool}.api_key", text)
    strategy, replicas = at(pod.owner, "spec", "strategy"), fewest(rendering, pod)
    gone = {"maxUnavailable": at(strategy, "rollingUpdate", "maxUnavailable") or 0}
    if strategy.get("type") == "Recreate" or evictable(gone, replicas, math.floor) >= max(replicas, 1):
        text = "an update ends every gateway before another one is ready; maxUnavailable: 0 and maxSurge: 1"
        yield Problem(pod.name, "spec.strategy", text)
    if server.drain_s < served.life_s:
        yield Problem(
            name,
            f"data[{ROUTES}].server.drain_s",
            f"{server.drain_s:g} s would cut requests off in an update: {served.life}",
        )
    sleep = pre_stop(container)
    if not sleep:
        yield Problem(
            pod.name, f"{container.where}.lifecycle.preStop.sleep", "is missing: how long balancers need"
        )
    needed = math.ceil(sleep + server.linger_s + server.drain_s + LAST_BYTES_S + GATEWAY_MARGIN_S)
    grace = pod.spec.get("terminationGracePeriodSeconds", GRACE_S)
    if grace < needed:
        yield Problem(
            pod.name,
            f"{pod.path}.terminationGracePeriodSeconds",
            f"{grace} s; an end takes up to {needed} s: preStop {sleep} + linger_s {server.linger_s:g} + "
            f"drain_s {server.drain_s:g} + {LAST_BYTES_S} for the last bytes + {GATEWAY_MARGIN_S} to spare",
        )
    own = scalers(rendering, pod.owner)
    most = max((autoscaling.bounds(one)[1] for one in own), default=pod.owner["spec"].get("replicas", 1))
    if most > server.replicas:
        yield Problem(
            name_of(own[0]) if own else pod.name,
            "spec",
            f"up to {most} gateways, and engines are shared out among {server.replicas}: server.replicas",
        )
    if any(EMBEDDED in pool.engines for pool in config.pools.values()):
        yield from _extras(pod, container, "embedded engine")


def _extras(pod: Pod, container: Container, what: str) -> Iterator[Problem]:
    """The image must be the one of target `embedded`; a digest does not tell."""
    image = str(container.spec.get("image", ""))
    if "@" not in image and not image.endswith("-embedded"):
        yield Problem(pod.name, f"{container.where}.image", f"{image} has no {what}; the tag '-embedded' has")


def _command(pod: Pod, container: Container) -> Iterator[Problem]:
    """The arguments of `ocr-gateway`, the image's entry point, are read by its own parser."""
    if "command" in container.spec:
        return
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = parser().parse_args(container.args)
    except SystemExit:
        yield Problem(
            pod.name, f"{container.where}.args", (said.getvalue().strip() or "no command").splitlines()[-1]
        )
        return
    if pod.component == GATEWAY:
        if container.args[0] != "serve":
            yield Problem(pod.name, f"{container.where}.args[0]", f"{container.args[0]} must be serve")
        elif options.host not in ("0.0.0.0", "::"):  # noqa: S104 - a pod's own addresses
            yield Problem(
                pod.name, f"{container.where}.args", f"--host {options.host} must be 0.0.0.0 (or ::)"
            )
        elif options.port not in container.ports.values():
            text = f"--port {options.port} is none of the container's: {container.ports}"
            yield Problem(pod.name, f"{container.where}.args", text)


def _in_front(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Ingresses and routes before the gateway must let through what it takes, for as long as it may take."""
    own = {
        service["metadata"]["name"]
        for service in rendering.of("Service")
        if served.pod
        in rendering.selected({"matchLabels": at(service, "spec", "selector")}, namespace_of(service))
    }
    for ingress in rendering.of("Ingress"):
        paths = [
            str(path.get("path", "/"))
            for rule in at(ingress, "spec", "rules") or ()
            for path in at(rule, "http", "paths") or ()
            if at(path, "backend", "service").get("name") in own
        ]
        yield from _published(name_of(ingress), "spec.rules", paths)
        if paths and "nginx" in (at(ingress, "spec", "ingressClassName") or "nginx"):
            yield from _nginx(ingress, served)
    for route in rendering.of("HTTPRoute"):
        for index, rule in enumerate(at(route, "spec", "rules") or ()):
            if not own & {backend.get("name") for backend in rule.get("backendRefs") or ()}:
                continue
            paths = [at(match, "path", "value") or "/" for match in rule.get("matches") or [{}]]
            yield from _published(name_of(route), f"spec.rules[{index}].matches", paths)
            for key in ("request", "backendRequest"):
                told = at(rule, "timeouts", key) or None
                unset = told is None and key == "backendRequest"
                if not unset and seconds(told) < served.life_s:
                    yield Problem(
                        name_of(route),
                        f"spec.rules[{index}].timeouts.{key}",
                        f"{told or 'the implementation decides'}; {served.life}",
                    )


def _published(name: str, where: str, paths: list[str]) -> Iterator[Problem]:
    for path in paths:
        if open_ := [page for page in _PAGES if page.startswith(path)]:
            yield Problem(name, where, f"{path} publishes {' and '.join(open_)}, too; clients need /v1 alone")


def _asked(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Autoscalers must ask for the model, pools and routes that there are."""
    config = served.config
    there = {"model": [config.model], "pool": list(config.pools), "route": list(config.routes)}
    pools = {
        name_of(scaler): pod.labels.get(POOL)
        for pod in rendering.pods
        for scaler in scalers(rendering, pod.owner)
    }
    for one in series.by_scalers(rendering):
        own = pools.get(one.name)
        with contextlib.suppress(ValueError):  # what is no PromQL is told elsewhere
            for label, value in sorted(series.names(one.expr).values):
                if label == "pool" and own not in (None, value):
                    yield Problem(one.name, one.where, f"asks for pool {value}, and scales pool {own}")
                if value not in there.get(label, [value]):
                    known = ", ".join(there[label])
                    yield Problem(one.name, one.where, f"no {label} {value} in {ROUTES}, which has {known}")


def _nginx(ingress: Document, served: Served) -> Iterator[Problem]:
    annotations = at(ingress, "metadata", "annotations")
    key = f"{_NGINX}proxy-body-size"
    if size(str(annotations.get(key, "1m"))) < served.config.limits.body_bytes:
        yield Problem(
            name_of(ingress),
            f"metadata.annotations[{key}]",
            f"{annotations.get(key, 'not set: 1m')}; a request may have "
            f"{served.config.limits.body_bytes} bytes (limits.body_bytes)",
        )
    key = f"{_NGINX}proxy-buffering"
    if annotations.get(key) == "on":
        yield Problem(
            name_of(ingress), f"metadata.annotations[{key}]", "holds streams back until they end; off"
        )
    key = f"{_NGINX}proxy-read-timeout"
    if seconds(f"{annotations.get(key, 60)}s") < served.life_s:
        yield Problem(
            name_of(ingress),
            f"metadata.annotations[{key}]",
            f"{annotations.get(key, 'not set: 60')} s; {served.life}",
        )


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
