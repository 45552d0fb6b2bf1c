"""Pods by themselves: who they run as, what they may use, how they are probed, what they refer to.

The security rules are those of the Pod Security Standard "restricted", and a read-only root file system.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from deploy.checks.objects import ENGINE, GATEWAY, at, label_text, matches, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from deploy.checks.objects import Container, Document, Findings, Pod, Problem, Rendering

# Made by the operator with `kubectl create secret`, never by a rendering; and the keys in it.
SECRETS = {"ocr-gateway-keys": {"engine-key", "keys"}}
# An engine loads its model for minutes.
ENGINE_STARTS_S = 300
# A busy container answers late, and a restart cuts all it has.
LEAST_LIVENESS_S = 30

# Of a securityContext: what each key may be ({} where it is not set), whether the pod's own counts where the
# container has none, and what is said otherwise.
_SECURITY: tuple[tuple[str, Callable[[Any], bool], bool, str], ...] = (
    ("runAsNonRoot", lambda value: value is True, True, "must be true, here or for the pod"),
    (
        "runAsUser",
        lambda value: value not in ({}, 0),
        True,
        "must be set, and not to 0: an image's user may change",
    ),
    (
        "seccompProfile.type",
        lambda value: value in ("RuntimeDefault", "Localhost"),
        True,
        "must be RuntimeDefault, here or for the pod",
    ),
    ("allowPrivilegeEscalation", lambda value: value is False, False, "must be false"),
    ("readOnlyRootFilesystem", lambda value: value is True, False, "must be true"),
    ("privileged", lambda value: not value, False, "must not be true"),
    ("procMount", lambda value: value in ({}, "Default"), False, "must be Default"),
    ("capabilities.drop", lambda value: "ALL" in value, False, "must be [ALL]"),
    (
        "capabilities.add",
        lambda value: set(value) <= {"NET_BIND_SERVICE"},
        False,
        "only NET_BIND_SERVICE is allowed",
    ),
)
_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"}
_VOLUMES |= {"persistentVolumeClaim", "projected", "secret"}
_IMAGE = re.compile(r"[^\s@]+?:(?!latest$)[\w.-]+|[^\s@]+@sha256:[0-9a-f]{64}")
_PATHS = {
    GATEWAY: {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"},
    ENGINE: {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/health"},
}
_ACTIONS = ("httpGet", "tcpSocket", "grpc", "exec")
_UNITS = {
    **{unit: Decimal(1000) ** power for power, unit in enumerate(["n", "u", "m", "", *"kMGTPE"], -3)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


def quantity(text: object) -> Decimal:
    """Read a quantity, such as 500m, 2 or 1.5Gi; what is none counts as 0, and schemas name it."""
    found = re.fullmatch(r"([0-9.]+)(e[0-9]+)?([numkKMGTPE]i?)?", str(text))
    if found is None or (found[3] or "") not in _UNITS:
        return Decimal(0)
    return Decimal(found[1] + (found[2] or "")) * _UNITS[found[3] or ""]


def check(rendering: Rendering) -> Iterator[Problem]:
    """Yield what is wrong with any pod."""
    for pod in rendering.pods:
        for findings in (_host(rendering, pod), _volumes(pod), _spread(pod), _references(rendering, pod)):
            yield from named(pod.name, findings)
        if not pod.spec.get("containers"):
            yield from named(pod.name, [(f"{pod.path}.containers", "is empty")])
        for container in pod.containers:
            yield from named(pod.name, _container(pod, container))
            if pod.serves and (not container.init or container.sidecar):
                yield from named(pod.name, _probes(pod, container))


def _host(rendering: Rendering, pod: Pod) -> Findings:
    """What a pod shares with its node and with the cluster's API."""
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(key):
            yield f"{pod.path}.{key}", "is true; nothing here needs the host's"
    account = rendering.find("ServiceAccount", pod.spec.get("serviceAccountName"), pod.namespace) or {}
    default = account.get("automountServiceAccountToken", True)
    if pod.spec.get("automountServiceAccountToken", default):
        where = f"{pod.path}.automountServiceAccountToken"
        yield where, "a token of the service account is mounted; set it to false"


def _volumes(pod: Pod) -> Findings:
    volumes = {volume["name"]: f"{pod.path}.volumes" for volume in pod.spec.get("volumes") or ()}
    claims = {
        at(one, "metadata", "name") or "" for one in at(pod.owner, "spec", "volumeClaimTemplates") or ()
    }
    volumes |= dict.fromkeys(claims, "spec.volumeClaimTemplates")
    for volume in pod.spec.get("volumes") or ():
        where = f"{pod.path}.volumes[{volume['name']}]"
        if len(volume) != 2:
            yield where, "must have one source, such as emptyDir: {}"
        if kinds := volume.keys() - {"name"} - _VOLUMES:
            yield where, f"{', '.join(sorted(kinds))}: not allowed by the restricted profile"
        if any("serviceAccountToken" in source for source in at(volume, "projected", "sources") or ()):
            yield where, "mounts a token of the service account; nothing here needs one"
        if "persistentVolumeClaim" in volume:
            claims.add(volume["name"])
    for container in pod.containers:
        for mount in container.spec.get("volumeMounts") or ():
            if mount["name"] not in volumes:
                text = f"no volume of this name; there are {', '.join(sorted(volumes)) or 'none'}"
                yield f"{container.where}.volumeMounts[{mount['name']}]", text
    for name in volumes.keys() - {
        mount["name"] for one in pod.containers for mount in one.spec.get("volumeMounts") or ()
    }:
        yield f"{volumes[name]}[{name}]", "no container mounts it"
    written = {mount["name"] for one in pod.containers for mount in one.writable}
    if claims & written and "fsGroup" not in at(pod.spec, "securityContext"):
        text = "must be set: a new volume belongs to root, and these containers could not write to it"
        yield f"{pod.path}.securityContext.fsGroup", text


def _container(pod: Pod, container: Container) -> Findings:
    where = container.where
    for key, allowed, inherited, text in _SECURITY:
        path = ("securityContext", *key.split("."))
        value = at(container.spec, *path)
        if not allowed(at(pod.spec, *path) if inherited and value == {} else value):
            yield f"{where}.securityContext.{key}", text
    image = str(container.spec.get("image", ""))
    if not _IMAGE.fullmatch(image):
        yield f"{where}.image", f"{image!r} must have a tag that is not latest, or a digest"
    ports = container.spec.get("ports") or ()
    names = [port["name"] for port in ports if port.get("name")]
    for port in ports:
        if port.get("hostPort"):
            yield f"{where}.ports[{port.get('name')}].hostPort", "must not be set"
        if names.count(port.get("name")) > 1:
            yield f"{where}.ports[{port['name']}]", "two ports of this name"
    resources = container.spec.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, key in (("limits", "memory"), ("requests", "memory"), ("requests", "cpu")):
        if quantity(at(resources, kind, key)) <= 0:
            yield f"{where}.resources.{kind}.{key}", "must be set"
    for key in limits.keys() & requests.keys():
        if quantity(requests[key]) > quantity(limits[key]):
            yield f"{where}.resources.requests.{key}", f"{requests[key]} is over its limit, {limits[key]}"
    for key in limits.keys() | requests.keys():
        if "/" in key and limits.get(key) != requests.get(key, limits.get(key)):
            yield f"{where}.resources.limits.{key}", "must be what is requested: it is not divided"


def _probes(pod: Pod, container: Container) -> Findings:
    ports = container.ports
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        where, probe = f"{container.where}.{kind}", container.spec.get(kind)
        if not probe:
            yield where, "is missing"
            continue
        if sum(key in probe for key in _ACTIONS) != 1:
            yield where, f"must have one of {', '.join(_ACTIONS)}"
        for action in _ACTIONS:
            port = at(probe, action, "port")
            if port != {} and port not in (ports if isinstance(port, str) else ports.values()):
                text = f"no port {port} in this container; it has {container.ports_text()}"
                yield f"{where}.{action}.port", text
        path = _PATHS.get(pod.component, {}).get(kind)
        if path and at(probe, "httpGet", "path") != path:
            yield f"{where}.httpGet.path", f"must be {path}"
        fails_s, by = (
            probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10),
            "(failureThreshold x periodSeconds)",
        )
        if kind == "startupProbe" and pod.component == ENGINE and fails_s < ENGINE_STARTS_S:
            yield where, f"allows {fails_s} s to load a model; give it {ENGINE_STARTS_S} s or more {by}"
        if kind == "livenessProbe" and fails_s < LEAST_LIVENESS_S:
            text = f"ends it after {fails_s} s of silence, with all it is answering; a busy one is late: "
            yield where, f"{text}{LEAST_LIVENESS_S} s or more {by}"


def _spread(pod: Pod) -> Findings:
    for index, spread in enumerate(pod.spec.get("topologySpreadConstraints") or ()):
        if not matches(spread.get("labelSelector"), pod.labels):
            where = f"{pod.path}.topologySpreadConstraints[{index}].labelSelector"
            yield where, f"does not match the pod's own labels, {label_text(pod.labels)}"


def _references(rendering: Rendering, pod: Pod) -> Findings:
    """What a pod names must be there, since it would wait for it for ever."""
    for where, kind, reference, keys in _named_objects(pod):
        name = str(reference.get("name", reference.get("secretName", reference.get("claimName"))))
        if reference.get("optional"):
            continue
        if kind == "Secret":
            if name not in SECRETS:
                yield where, f"no Secret {name} is known; the one that operators make is {', '.join(SECRETS)}"
            elif missing := set(keys) - SECRETS[name]:
                text = (
                    f"Secret {name} has {', '.join(sorted(SECRETS[name]))}, not {', '.join(sorted(missing))}"
                )
                yield where, text
        elif (found := rendering.find(kind, name, pod.namespace)) is None:
            there = rendering.names(kind, pod.namespace)
            yield where, f"no {kind} {name} in this rendering; there are: {there}"
        elif missing := set(keys) - {*at(found, "data"), *at(found, "binaryData")}:
            yield where, f"{kind} {name} has no key {', '.join(sorted(missing))}"


def _named_objects(pod: Pod) -> Iterator[tuple[str, str, Document, Iterable[str]]]:
    """Yield where a pod refers to which kind of object, the reference, and the keys that it wants of it."""
    if account := pod.spec.get("serviceAccountName"):
        yield f"{pod.path}.serviceAccountName", "ServiceAccount", {"name": account}, ()
    for volume in pod.spec.get("volumes") or ():
        where = f"{pod.path}.volumes[{volume['name']}]"
        for source in (volume, *(at(volume, "projected", "sources") or ())):
            for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
                if found := source.get(key):
                    yield where, kind, found, [item["key"] for item in found.get("items") or ()]
        if claim := volume.get("persistentVolumeClaim"):
            yield where, "PersistentVolumeClaim", claim, ()
    for container in pod.containers:
        for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
            for name, variable in container.env.items():
                if found := at(variable, "valueFrom", f"{key}KeyRef"):
                    yield f"{container.where}.env[{name}]", kind, found, [found.get("key", "")]
            for index, source in enumerate(container.spec.get("envFrom") or ()):
                if found := source.get(f"{key}Ref"):
                    yield f"{container.where}.envFrom[{index}]", kind, found, ()
