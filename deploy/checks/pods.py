"""Pods by themselves: who they run as, what they may use, how they are probed, what they refer to.

The security rules are those of the Pod Security Standard "restricted", and a read-only root file system.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from deploy.checks.objects import ENGINE, GATEWAY, Problem, at, matches, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Container, Document, Pod, Rendering

# Made by the operator with `kubectl create secret`, never by a rendering; and the keys in it.
SECRETS = {"ocr-gateway-keys": {"engine-key", "keys"}}
# An engine loads its model for minutes.
ENGINE_STARTS_S = 300
# A busy container answers late, and a restart cuts all it has.
LEAST_LIVENESS_S = 30

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_IMAGE = re.compile(r"(?P<name>[^\s@]+?)(:(?P<tag>[\w.-]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?")
_PATHS = {
    GATEWAY: {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"},
    ENGINE: {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/health"},
}
_ACTIONS = ("httpGet", "tcpSocket", "grpc", "exec")
_UNITS = {
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
    "m": Decimal("0.001"),
    "u": Decimal("0.000001"),
    "n": Decimal("0.000000001"),
    "": Decimal(1),
}


def check(rendering: Rendering) -> Iterator[Problem]:
    """Yield what is wrong with any pod."""
    for pod in rendering.pods:
        yield from _security(rendering, pod)
        yield from _spread(pod)
        yield from _references(rendering, pod)
        if not pod.spec.get("containers"):
            yield Problem(pod.name, f"{pod.path}.containers", "is empty")
        for container in pod.containers:
            yield from _container(pod, container)
            if pod.serves and (not container.init or container.sidecar):
                yield from _probes(pod, container)


def quantity(text: object) -> Decimal:
    """Read a quantity, such as 500m, 2 or 1.5Gi; what is none counts as 0, and schemas tell it."""
    found = re.fullmatch(r"([0-9.]+)(e[0-9]+)?([numkKMGTPE]i?)?", str(text))
    if found is None or (found[3] or "") not in _UNITS:
        return Decimal(0)
    return Decimal(found[1] + (found[2] or "")) * _UNITS[found[3] or ""]


def _security(rendering: Rendering, pod: Pod) -> Iterator[Problem]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(key):
            yield Problem(pod.name, f"{pod.path}.{key}", "is true; nothing here needs the host's")
    for volume in pod.spec.get("volumes") or ():
        where = f"{pod.path}.volumes[{volume.get('name')}]"
        if len(volume) != 2:
            yield Problem(pod.name, where, "must have one source, such as emptyDir: {}")
        if kinds := volume.keys() - {"name"} - _VOLUMES:
            yield Problem(
                pod.name, where, f"{', '.join(sorted(kinds))}: not allowed by the restricted profile"
            )
        for source in at(volume, "projected", "sources") or ():
            if "serviceAccountToken" in source:
                yield Problem(
                    pod.name, where, "mounts a token of the service account; nothing here needs one"
                )
    if "fsGroup" not in at(pod.spec, "securityContext") and _claims(pod):
        text = "must be set: a new volume belongs to root, and these containers could not write to it"
        yield Problem(pod.name, f"{pod.path}.securityContext.fsGroup", text)
    account = rendering.find("ServiceAccount", pod.spec.get("serviceAccountName"), pod.namespace) or {}
    mounted = pod.spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
    if mounted:
        yield Problem(
            pod.name,
            f"{pod.path}.automountServiceAccountToken",
            "a token of the service account is mounted; set it to false",
        )


def _claims(pod: Pod) -> bool:
    """Whether the pod brings persistent volumes that it writes to."""
    claims = {at(claim, "metadata", "name") for claim in at(pod.owner, "spec", "volumeClaimTemplates") or ()}
    claims |= {one["name"] for one in pod.spec.get("volumes") or () if "persistentVolumeClaim" in one}
    return any(mount["name"] in claims for one in pod.containers for mount in one.writable)


def _container(pod: Pod, container: Container) -> Iterator[Problem]:
    where = container.where

    def effective(key: str) -> Any:
        own = at(container.spec, "securityContext", key)
        return own if own != {} else at(pod.spec, "securityContext", key)

    def problem(key: str, text: str) -> Problem:
        return Problem(pod.name, f"{where}.{key}", text)

    if effective("runAsNonRoot") is not True:
        yield problem("securityContext.runAsNonRoot", "must be true, here or for the pod")
    if effective("runAsUser") in ({}, 0):
        yield problem("securityContext.runAsUser", "must be set, and not to 0: an image's user may change")
    if at(effective("seccompProfile"), "type") not in ("RuntimeDefault", "Localhost"):
        yield problem("securityContext.seccompProfile.type", "must be RuntimeDefault, here or for the pod")
    context = container.spec.get("securityContext") or {}
    for key, wanted in (("allowPrivilegeEscalation", False), ("readOnlyRootFilesystem", True)):
        if context.get(key) is not wanted:
            yield problem(f"securityContext.{key}", f"must be {str(wanted).lower()}")
    if context.get("privileged"):
        yield problem("securityContext.privileged", "must not be true")
    if at(context, "procMount") not in ({}, "Default"):
        yield problem("securityContext.procMount", "must be Default")
    if "ALL" not in (at(context, "capabilities", "drop") or ()):
        yield problem("securityContext.capabilities.drop", "must be [ALL]")
    if set(at(context, "capabilities", "add") or ()) - {"NET_BIND_SERVICE"}:
        yield problem("securityContext.capabilities.add", "only NET_BIND_SERVICE is allowed")
    yield from _image(pod, container)
    yield from _resources(pod, container)
    names = [port.get("name") for port in container.spec.get("ports") or ()]
    for port in container.spec.get("ports") or ():
        if port.get("hostPort"):
            yield problem(f"ports[{port.get('name')}].hostPort", "must not be set")
        if port.get("name") is not None and names.count(port["name"]) > 1:
            yield problem(f"ports[{port['name']}]", "two ports of this name")


def _image(pod: Pod, container: Container) -> Iterator[Problem]:
    image = str(container.spec.get("image", ""))
    found = _IMAGE.fullmatch(image)
    if found is None or not (found["digest"] or (found["tag"] and found["tag"] != "latest")):
        yield Problem(
            pod.name, f"{container.where}.image", f"{image!r} must have a tag that is not latest, or a digest"
        )


def _resources(pod: Pod, container: Container) -> Iterator[Problem]:
    resources = container.spec.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    where = f"{container.where}.resources"
    for kind, key in (("limits", "memory"), ("requests", "memory"), ("requests", "cpu")):
        if not (quantity(at(resources, kind, key)) > 0):
            yield Problem(pod.name, f"{where}.{kind}.{key}", "must be set")
    for key in limits.keys() & requests.keys():
        if quantity(requests[key]) > quantity(limits[key]):
            yield Problem(
                pod.name, f"{where}.requests.{key}", f"{requests[key]} is over its limit, {limits[key]}"
            )
    for key in limits.keys() | requests.keys():
        if "/" in key and limits.get(key) != requests.get(key, limits.get(key)):
            yield Problem(pod.name, f"{where}.limits.{key}", "must be what is requested: it is not divided")


def _probes(pod: Pod, container: Container) -> Iterator[Problem]:
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        where = f"{container.where}.{kind}"
        probe = container.spec.get(kind)
        if not probe:
            yield Problem(pod.name, where, "is missing")
            continue
        if sum(key in probe for key in _ACTIONS) != 1:
            yield Problem(pod.name, where, f"must have one of {', '.join(_ACTIONS)}")
        for action in _ACTIONS:
            port = at(probe, action, "port")
            if port == {}:
                continue
            own = container.ports
            if port not in (own if isinstance(port, str) else own.values()):
                ports = ", ".join(f"{name} ({number})" for name, number in own.items()) or "none"
                yield Problem(
                    pod.name, f"{where}.{action}.port", f"no port {port} in this container; it has {ports}"
                )
        wanted = _PATHS.get(pod.component, {}).get(kind)
        if wanted and at(probe, "httpGet", "path") != wanted:
            yield Problem(pod.name, f"{where}.httpGet.path", f"must be {wanted}")
    startup, allowed_s = _lasts(container, "startupProbe")
    if pod.component == ENGINE and startup and allowed_s < ENGINE_STARTS_S:
        yield Problem(
            pod.name,
            f"{container.where}.startupProbe",
            f"allows {allowed_s} s to load a model; give it {ENGINE_STARTS_S} s or more "
            "(failureThreshold x periodSeconds)",
        )

    alive, allowed_s = _lasts(container, "livenessProbe")
    if alive and allowed_s < LEAST_LIVENESS_S:
        yield Problem(
            pod.name,
            f"{container.where}.livenessProbe",
            f"ends it after {allowed_s} s of silence, with all it is answering; a busy one is late: "
            f"{LEAST_LIVENESS_S} s or more (failureThreshold x periodSeconds)",
        )


def _lasts(container: Container, kind: str) -> tuple[Document, int]:
    """A probe, and the seconds for which it must fail."""
    probe = container.spec.get(kind) or {}
    return probe, probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10)


def _spread(pod: Pod) -> Iterator[Problem]:
    for index, spread in enumerate(pod.spec.get("topologySpreadConstraints") or ()):
        if not matches(spread.get("labelSelector"), pod.labels):
            yield Problem(
                pod.name,
                f"{pod.path}.topologySpreadConstraints[{index}].labelSelector",
                f"does not match the pod's own labels, {told(pod.labels)}",
            )


def _references(rendering: Rendering, pod: Pod) -> Iterator[Problem]:
    """What a pod names must be there, since it would wait for it for ever."""
    account = pod.spec.get("serviceAccountName")
    if account and rendering.find("ServiceAccount", account, pod.namespace) is None:
        yield Problem(
            pod.name, f"{pod.path}.serviceAccountName", _missing(rendering, pod, "ServiceAccount", account)
        )
    for volume in pod.spec.get("volumes") or ():
        where = f"{pod.path}.volumes[{volume.get('name')}]"
        sources = [volume, *(at(volume, "projected", "sources") or ())]
        for source in sources:
            if config := source.get("configMap"):
                keys = [item["key"] for item in config.get("items") or ()]
                yield from _reference(rendering, pod, where, "ConfigMap", config, keys)
            if secret := source.get("secret"):
                keys = [item["key"] for item in secret.get("items") or ()]
                named = {"name": secret.get("secretName", secret.get("name")), **secret}
                yield from _reference(rendering, pod, where, "Secret", named, keys)
        if claim := at(volume, "persistentVolumeClaim", "claimName"):
            yield from _reference(rendering, pod, where, "PersistentVolumeClaim", {"name": claim}, ())
    for container in pod.containers:
        yield from _variables(rendering, pod, container)
    yield from _mounts(pod)


def _variables(rendering: Rendering, pod: Pod, container: Container) -> Iterator[Problem]:
    for name, variable in container.env.items():
        where = f"{container.where}.env[{name}]"
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if reference := at(variable, "valueFrom", key):
                yield from _reference(rendering, pod, where, kind, reference, [reference.get("key", "")])
    for index, source in enumerate(container.spec.get("envFrom") or ()):
        where = f"{container.where}.envFrom[{index}]"
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if reference := source.get(key):
                yield from _reference(rendering, pod, where, kind, reference, ())


def _mounts(pod: Pod) -> Iterator[Problem]:
    volumes = {volume["name"]: f"{pod.path}.volumes" for volume in pod.spec.get("volumes") or ()}
    for claim in at(pod.owner, "spec", "volumeClaimTemplates") or ():
        volumes[str(at(claim, "metadata", "name") or "")] = "spec.volumeClaimTemplates"
    mounted = set()
    for container in pod.containers:
        for mount in container.spec.get("volumeMounts") or ():
            mounted.add(mount["name"])
            if mount["name"] not in volumes:
                yield Problem(
                    pod.name,
                    f"{container.where}.volumeMounts[{mount['name']}]",
                    f"no volume of this name; there are {', '.join(sorted(volumes)) or 'none'}",
                )
    for name in volumes.keys() - mounted:
        yield Problem(pod.name, f"{volumes[name]}[{name}]", "no container mounts it")


def _reference(
    rendering: Rendering, pod: Pod, where: str, kind: str, reference: Document, keys: list[str] | tuple[()]
) -> Iterator[Problem]:
    name = str(reference.get("name"))
    if reference.get("optional"):
        return
    if kind == "Secret":
        if name not in SECRETS:
            yield Problem(
                pod.name,
                where,
                f"no Secret {name} is known; the one that operators make is {', '.join(SECRETS)}",
            )
        elif missing := set(keys) - SECRETS[name]:
            yield Problem(
                pod.name,
                where,
                f"Secret {name} has {', '.join(sorted(SECRETS[name]))}, not {', '.join(sorted(missing))}",
            )
        return
    found = rendering.find(kind, name, pod.namespace)
    if found is None:
        yield Problem(pod.name, where, _missing(rendering, pod, kind, name))
    elif missing := set(keys) - {*at(found, "data"), *at(found, "binaryData")}:
        yield Problem(pod.name, where, f"{kind} {name} has no key {', '.join(sorted(missing))}")


def _missing(rendering: Rendering, pod: Pod, kind: str, name: str) -> str:
    return f"no {kind} {name} in this rendering; there are: {rendering.names(kind, pod.namespace)}"
