"""Every overlay is clean, alone and with components; an injected mistake of each kind is found and named."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.checks import schemas
from deploy.checks.objects import Rendering, name_of
from deploy.checks.run import policy, problems
from deploy.checks.series import by_scalers, names
from tests.deploy.renderings import (
    COMBINATIONS,
    FETCHING,
    FULL,
    HPA,
    KUBERNETES,
    NGINX,
    OPEN,
    TRACED,
    Combination,
    rendered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploy.checks.objects import Document

GONE = object()


@pytest.mark.parametrize("one", COMBINATIONS, ids=str)
def test_it_renders_and_nothing_is_wrong(one: Combination) -> None:
    assert list(map(str, problems(rendered(one)))) == []


@dataclass(frozen=True)
class Mistake:
    """One edit of a rendering, and what is to be said of it.

    Attributes:
        name: the object edited, as `Kind/name`.
        path: the keys to what is edited, with spaces between, entries of lists by name or number; empty: the
            object itself, to be added or GONE.
        value: what stands there then; a function of what stood there; GONE.
        text: told, of `told` or of the object itself.
    """

    title: str
    name: str
    path: str
    value: Any
    text: str
    told: str = ""
    of: Combination = FULL

    def __str__(self) -> str:
        return self.title


def replaced(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return edit


def plus(*more: str) -> Callable[[list[str]], list[str]]:
    return lambda args: [*args, *more]


def step(found: Any, key: str) -> Any:
    """The key itself, or the number of an entry of a list."""
    if isinstance(found, list):
        named = [
            index for index, entry in enumerate(found) if isinstance(entry, dict) and entry.get("name") == key
        ]
        return named[0] if named else int(key)
    return key


def edited(mistake: Mistake) -> tuple[list[Document], list[Document]]:
    """The rendering with the mistake in it, and of this the objects that are not as they were."""
    documents = list(rendered(mistake.of))
    if not mistake.path:
        if mistake.value is GONE:
            return [one for one in documents if name_of(one) != mistake.name], []
        return [*documents, mistake.value], [mistake.value]
    (index,) = (i for i, document in enumerate(documents) if name_of(document) == mistake.name)
    documents[index] = found = copy.deepcopy(documents[index])
    *path, last = mistake.path.split()
    for key in path:
        found = found[step(found, key)]
    last = step(found, last)
    if mistake.value is GONE:
        del found[last]
    else:
        found[last] = mistake.value(found[last]) if callable(mistake.value) else mistake.value
    return documents, [documents[index]]


GATEWAY, MTP3, PLAIN, ROUTES = (
    "Deployment/ocr-gateway",
    "StatefulSet/vllm-mtp3",
    "StatefulSet/vllm-plain",
    "ConfigMap/ocr-gateway-routes",
)
POD = "spec template spec"
CONTAINER = f"{POD} containers gateway"
ENGINE = f"{POD} containers vllm"
SWEEP = "Job/ocr-gateway-sweep"
DASHBOARD = "ConfigMap/ocr-gateway-dashboard"
GPUS = {
    "requests": {"cpu": 4, "memory": "24Gi"},
    "limits": {"cpu": 4, "memory": "24Gi", "nvidia.com/gpu": "8"},
}
FILE = "data routes.yaml"
POLICY, MONITOR = "NetworkPolicy/ocr-gateway", "PodMonitor/ocr-gateway"
KEYLESS = "/etc/ocr-gateway-keys/keys is in no Secret that is mounted"
HOSTS = "\nremote_images: {allow_hosts: [images.example]}\n"
COMPONENT = "app.kubernetes.io/component"

SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "ocr-gateway-keys", "namespace": "ocr"},
    "stringData": {"engine-key": "s3cret"},
}

MISTAKES = [
    # Shapes.
    Mistake(
        "an unknown field", GATEWAY, f"{CONTAINER} imagePullPolice", "Always", "'imagePullPolice' is no field"
    ),
    Mistake("a wrong type", GATEWAY, "spec minReadySeconds", "ten", "'ten' is not of type"),
    Mistake(
        "an unknown field of a PodMonitor",
        "PodMonitor/ocr-gateway",
        "spec endpoints",
        [],
        "'endpoints' is no",
    ),
    Mistake(
        "a wrong field of an HTTPRoute",
        "HTTPRoute/ocr-gateway",
        "spec rules 0 timeout",
        {},
        "'timeout' is no",
    ),
    Mistake(
        "a wrong type in a rule", "PrometheusRule/ocr-gateway", "spec groups 0 rules 0 for", 5, "5 is not of"
    ),
    Mistake(
        "a kind that nobody has",
        GATEWAY,
        "kind",
        "Deploymint",
        "no schema of apps/v1",
        "Deploymint/ocr-gateway",
    ),
    Mistake("a version that nobody has", GATEWAY, "apiVersion", "apps/v1beta9", "no schema of apps/v1beta9"),
    Mistake("a key with nothing behind it", MTP3, f"{POD} volumes tmp emptyDir", None, "write {}"),
    Mistake("a label that is none", GATEWAY, "metadata labels team", "a b", "'a b' is no label's value"),
    Mistake(
        "a quantity that is none",
        GATEWAY,
        f"{CONTAINER} resources limits memory",
        "1GB",
        "'1GB' is no quantity",
    ),
    Mistake(
        "a name that is none", GATEWAY, "metadata name", "OCR_gateway", "lower-case", "Deployment/OCR_gateway"
    ),
    # Pods.
    Mistake("a root container", GATEWAY, f"{POD} securityContext runAsNonRoot", False, "must be true"),
    Mistake("root by number", MTP3, f"{POD} securityContext runAsUser", 0, "not to 0"),
    Mistake(
        "a writable root", MTP3, f"{ENGINE} securityContext readOnlyRootFilesystem", False, "must be true"
    ),
    Mistake("more rights", MTP3, f"{ENGINE} securityContext allowPrivilegeEscalation", GONE, "must be false"),
    Mistake("privileged", MTP3, f"{ENGINE} securityContext privileged", True, "must not be true"),
    Mistake(
        "capabilities", GATEWAY, f"{CONTAINER} securityContext capabilities", {"add": ["NET_ADMIN"]}, "[ALL]"
    ),
    Mistake("no seccomp", GATEWAY, f"{POD} securityContext seccompProfile", GONE, "must be RuntimeDefault"),
    Mistake("the host's network", MTP3, f"{POD} hostNetwork", True, "the host's"),
    Mistake("the host's IPC", MTP3, f"{POD} hostIPC", True, "the host's"),
    Mistake("a port of the host", MTP3, f"{ENGINE} ports http hostPort", 8000, "must not be set"),
    Mistake(
        "a path of the host",
        MTP3,
        f"{POD} volumes tmp",
        {"name": "tmp", "hostPath": {"path": "/"}},
        "hostPath",
    ),
    Mistake("a token", GATEWAY, f"{POD} automountServiceAccountToken", True, "token of the service account"),
    Mistake("no limit", GATEWAY, f"{CONTAINER} resources limits", GONE, "must be set"),
    Mistake("no request", MTP3, f"{ENGINE} resources requests cpu", GONE, "must be set"),
    Mistake(
        "more than the limit", GATEWAY, f"{CONTAINER} resources requests memory", "64Gi", "over its limit"
    ),
    Mistake(
        "no GPU",
        MTP3,
        f"{ENGINE} resources",
        {"limits": {"memory": "1Gi"}, "requests": {"cpu": 1, "memory": "1"}},
        "no GPU",
    ),
    Mistake(
        "the latest image", GATEWAY, f"{CONTAINER} image", "ocr-gateway:latest", "a tag that is not latest"
    ),
    Mistake("an image of no tag", MTP3, f"{ENGINE} image", "localhost:5000/vllm", "a tag that is not latest"),
    Mistake("a missing probe", GATEWAY, f"{CONTAINER} livenessProbe", GONE, "is missing"),
    Mistake(
        "a probe of a wrong port", MTP3, f"{ENGINE} readinessProbe httpGet port", "metrics", "no port metrics"
    ),
    Mistake("a probe of a wrong number", MTP3, f"{ENGINE} startupProbe httpGet port", 9000, "no port 9000"),
    Mistake(
        "liveness by readiness",
        GATEWAY,
        f"{CONTAINER} livenessProbe httpGet path",
        "/ready",
        "must be /health",
    ),
    Mistake(
        "no time to load a model", MTP3, f"{ENGINE} startupProbe failureThreshold", 6, "allows 30 s to load"
    ),
    Mistake(
        "spread of others",
        GATEWAY,
        f"{POD} topologySpreadConstraints 0 labelSelector matchLabels {COMPONENT}",
        "x",
        "pod's own labels",
    ),
    Mistake("no such account", GATEWAY, f"{POD} serviceAccountName", "gateway", "no ServiceAccount gateway"),
    Mistake(
        "no such secret",
        MTP3,
        f"{ENGINE} env VLLM_API_KEY valueFrom secretKeyRef name",
        "keys",
        "no Secret keys",
    ),
    Mistake(
        "no such key",
        MTP3,
        f"{ENGINE} env VLLM_API_KEY valueFrom secretKeyRef key",
        "key",
        "has engine-key, keys, not key",
    ),
    Mistake(
        "no such claim",
        SWEEP,
        f"{POD} volumes results persistentVolumeClaim claimName",
        "x",
        "no PersistentVolumeClaim x",
    ),
    Mistake("no such volume", MTP3, f"{ENGINE} volumeMounts tmp name", "temp", "no volume of this name"),
    Mistake(
        "a probe of nothing", GATEWAY, f"{CONTAINER} readinessProbe httpGet", GONE, "must have one of httpGet"
    ),
    Mistake("a volume of nothing", MTP3, f"{POD} volumes tmp emptyDir", GONE, "must have one source"),
    Mistake(
        "a volume that nobody mounts", MTP3, f"{ENGINE} volumeMounts shm", GONE, "no container mounts it"
    ),
    Mistake(
        "a cache that nobody mounts", MTP3, f"{ENGINE} volumeMounts cache", GONE, "no container mounts it"
    ),
    Mistake(
        "a token by hand",
        GATEWAY,
        f"{POD} volumes tmp",
        {"name": "tmp", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
        "mounts a token",
    ),
    Mistake(
        "an open /proc", GATEWAY, f"{CONTAINER} securityContext procMount", "Unmasked", "must be Default"
    ),
    Mistake(
        "two ports of a name",
        MTP3,
        f"{ENGINE} ports",
        [{"name": "http", "containerPort": 8000}, {"name": "http", "containerPort": 8001}],
        "two ports of this name",
    ),
    Mistake("half a GPU", MTP3, f"{ENGINE} resources limits nvidia.com/gpu", "2", "it is not divided"),
    Mistake(
        "another secret's files",
        GATEWAY,
        f"{POD} volumes tmp",
        {"name": "tmp", "secret": {"secretName": "certs"}},
        "no Secret certs",
    ),
    Mistake(
        "another secret's variables",
        GATEWAY,
        f"{CONTAINER} envFrom",
        [{"secretRef": {"name": "all"}}],
        "no Secret all",
    ),
    Mistake(
        "a key that no map has",
        GATEWAY,
        f"{CONTAINER} env",
        [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "ocr-gateway-routes", "key": "a"}}}],
        "has no key a",
    ),
    Mistake(
        "a key that may be missing on one side",
        GATEWAY,
        f"{CONTAINER} env ENGINE_KEY valueFrom secretKeyRef optional",
        True,
        "the pool's api_key from nowhere",
        MTP3,
    ),
    Mistake(
        "a sidecar without probes",
        GATEWAY,
        f"{POD} initContainers",
        [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
        "is missing",
    ),
    Mistake("no container", SWEEP, f"{POD} containers", [], "is empty"),
    Mistake("a volume of root's", MTP3, f"{POD} securityContext fsGroup", GONE, "must be set: a new volume"),
    Mistake("results of root's", SWEEP, f"{POD} securityContext fsGroup", GONE, "must be set: a new volume"),
    Mistake("an early end", GATEWAY, f"{CONTAINER} livenessProbe failureThreshold", 1, "ends it after 10 s"),
    # Who finds whom.
    Mistake(
        "a Service of nobody", "Service/ocr-gateway", f"spec selector {COMPONENT}", "gatewy", "matches no pod"
    ),
    Mistake(
        "a Service of two pools",
        "Service/vllm-mtp3",
        "spec selector ocr-gateway/pool",
        GONE,
        "vllm-mtp3 and StatefulSet/vllm-plain",
    ),
    Mistake(
        "a Service of a wrong port", "Service/ocr-gateway", "spec ports http targetPort", "htp", "no port htp"
    ),
    Mistake(
        "a workload of others' pods",
        GATEWAY,
        f"spec selector matchLabels {COMPONENT}",
        "engine",
        "no pod of its own",
    ),
    Mistake("no governing Service", MTP3, "spec serviceName", "vllm", "no Service vllm"),
    Mistake(
        "a budget of nobody",
        "PodDisruptionBudget/ocr-gateway",
        f"spec selector matchLabels {COMPONENT}",
        "x",
        "matches no pod",
    ),
    Mistake(
        "a pod of no budget",
        "PodDisruptionBudget/ocr-gateway",
        f"spec selector matchLabels {COMPONENT}",
        "x",
        "0 PodDisruptionBudgets",
        GATEWAY,
    ),
    Mistake(
        "a budget of no eviction",
        "PodDisruptionBudget/vllm-mtp3",
        "spec maxUnavailable",
        0,
        "may ever be evicted",
    ),
    Mistake(
        "a policy of nobody",
        "NetworkPolicy/ocr-gateway",
        f"spec podSelector matchLabels {COMPONENT}",
        "x",
        "matches no pod",
    ),
    Mistake("a pod of no policy", MTP3, "metadata namespace", "other", "no NetworkPolicy selects", MTP3),
    Mistake(
        "a policy of a wrong port",
        "NetworkPolicy/vllm-mtp3",
        "spec ingress 0 ports 0 port",
        9000,
        "no port 9000",
    ),
    Mistake(
        "a policy that opens engines",
        "NetworkPolicy/vllm-mtp3",
        "spec ingress 0 from",
        [{"podSelector": {}}],
        "lets in to StatefulSet/vllm-mtp3",
    ),
    Mistake(
        "a policy that opens engines to the world",
        "NetworkPolicy/vllm-plain",
        "spec ingress 0 from",
        GONE,
        "lets everyone in",
    ),
    Mistake(
        "a policy that opens engines to a namespace",
        "NetworkPolicy/vllm-plain",
        "spec ingress 0 from",
        [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "lets in to StatefulSet/vllm-plain",
    ),
    Mistake(
        "a policy that opens the gateway",
        "NetworkPolicy/ocr-gateway",
        "spec ingress 0 from",
        [{"namespaceSelector": {}}],
        "selects everything",
    ),
    Mistake(
        "no way out to engines",
        "NetworkPolicy/ocr-gateway",
        "spec egress 0 to 0 podSelector matchLabels",
        {COMPONENT: "gateway"},
        "do not let it out to StatefulSet/vllm-mtp3",
        GATEWAY,
    ),
    Mistake(
        "no DNS",
        "NetworkPolicy/ocr-gateway-dns",
        "spec egress 0 ports 0 port",
        5353,
        "no DNS out (UDP",
        GATEWAY,
    ),
    Mistake(
        "a monitor of nobody",
        "PodMonitor/ocr-gateway",
        f"spec selector matchLabels {COMPONENT}",
        "x",
        "matches nothing",
    ),
    Mistake(
        "a monitor of a wrong port",
        "PodMonitor/ocr-gateway",
        "spec podMetricsEndpoints 0 port",
        "metrics",
        "no port metrics",
    ),
    Mistake(
        "a route to nobody",
        "HTTPRoute/ocr-gateway",
        "spec rules 0 backendRefs 0 name",
        "gateway",
        "no Service gateway",
    ),
    Mistake(
        "a route to a wrong port",
        "HTTPRoute/ocr-gateway",
        "spec rules 0 backendRefs 0 port",
        80,
        "no port 80",
    ),
    Mistake(
        "an Ingress to a wrong port",
        "Ingress/ocr-gateway",
        "spec rules 0 http paths 0 backend service port",
        {"number": 80},
        "no port 80",
        of=NGINX,
    ),
    Mistake(
        "an open namespace",
        "Namespace/ocr",
        "metadata labels pod-security.kubernetes.io/enforce",
        "baseline",
        "must be restricted",
    ),
    Mistake(
        "a budget that guards nothing",
        "PodDisruptionBudget/ocr-gateway",
        "spec maxUnavailable",
        GONE,
        "go at once",
    ),
    Mistake(
        "no way in to engines",
        "NetworkPolicy/vllm-mtp3",
        "spec ingress",
        [],
        "do not let Deployment/ocr-gateway in",
        MTP3,
    ),
    Mistake(
        "no way in for the sweep",
        "NetworkPolicy/vllm-mtp3",
        "spec ingress 0 from 0 podSelector",
        {"matchLabels": {COMPONENT: "gateway"}},
        "do not let Job/ocr-gateway-sweep in",
        MTP3,
    ),
    Mistake(
        "no way in to the gateway", "NetworkPolicy/ocr-gateway", "spec ingress", [], "let nobody in", GATEWAY
    ),
    Mistake(
        "a way out to a wrong port",
        "NetworkPolicy/ocr-gateway",
        "spec egress 0 ports 0 port",
        9000,
        "vllm-mtp3 has no port 9000",
    ),
    Mistake(
        "a way out to nobody",
        "NetworkPolicy/ocr-gateway",
        "spec egress 0 to 0 podSelector matchLabels",
        {COMPONENT: "x"},
        "matches no pod",
    ),
    Mistake(
        "a monitor of nothing", "PodMonitor/ocr-gateway", "spec podMetricsEndpoints", GONE, "nothing is read"
    ),
    Mistake("a route from nowhere", "HTTPRoute/ocr-gateway", "spec parentRefs", [], "nothing comes through"),
    Mistake(
        "a route that ends", "HTTPRoute/ocr-gateway", "spec rules 0 backendRefs", GONE, "it leads nowhere"
    ),
    # The configuration, and everything in its light.
    Mistake(
        "a file elsewhere, in two words",
        GATEWAY,
        f"{CONTAINER} args",
        ["serve", "--config", "/routes.yaml", "--host=::"],
        "--config is /routes.yaml",
    ),
    Mistake(
        "another command with the same options",
        GATEWAY,
        f"{CONTAINER} args",
        ["check", "--config=/etc/ocr-gateway/routes.yaml"],
        "check must be serve",
    ),
    Mistake(
        "engines that have left",
        "Service/vllm-mtp3",
        "spec publishNotReadyAddresses",
        True,
        "engines that end must leave it",
    ),
    Mistake(
        "an option that there is not",
        GATEWAY,
        f"{CONTAINER} args",
        ["serve", "--prot=1", "--config=/etc/ocr-gateway/routes.yaml"],
        "unrecognized arguments: --prot=1",
    ),
    Mistake("no option at all", GATEWAY, f"{CONTAINER} args", ["--version"], "no command"),
    Mistake(
        "another command of the image", GATEWAY, f"{CONTAINER} args 0", "check", "unrecognized arguments"
    ),
    Mistake(
        "the pod's own address alone", GATEWAY, f"{CONTAINER} args 2", "--host=127.0.0.1", "must be 0.0.0.0"
    ),
    Mistake(
        "a port that is none of the pod's",
        GATEWAY,
        f"{CONTAINER} args 3",
        "--port=8001",
        "--port 8001 is none",
    ),
    Mistake("engines with others' variables", MTP3, f"{POD} enableServiceLinks", GONE, "which vLLM reads"),
    Mistake("an update in a hurry", MTP3, "spec minReadySeconds", 5, "5 s; an update may go on"),
    Mistake(
        "a broken routes.yaml", ROUTES, FILE, replaced("schedule:", "shedule:"), "did you mean 'schedule'"
    ),
    Mistake(
        "routes.yaml of an unknown variable",
        ROUTES,
        FILE,
        replaced("${ENGINE_KEY:-}", "${ENGIN_KEY}"),
        "ENGIN_KEY is not set",
    ),
    Mistake(
        "a profile that is not there",
        ROUTES,
        FILE,
        replaced("  table:\n", "  table:\n    profile: profiles/no.json\n"),
        "no.json cannot be read",
    ),
    Mistake(
        "a file that never changes",
        GATEWAY,
        f"{CONTAINER} volumeMounts routes subPath",
        "routes.yaml",
        "by subPath",
    ),
    Mistake("a map that never changes", ROUTES, "immutable", True, "could not take a change over"),
    Mistake("a map too large", ROUTES, "data notes", "x" * 2**18, "takes objects of up to 262144"),
    Mistake("a key in the open", ROUTES, FILE, replaced("${ENGINE_KEY:-}", "k"), "must come from a Secret"),
    Mistake("none but an outage", GATEWAY, "spec strategy", {"type": "Recreate"}, "ends every gateway"),
    Mistake(
        "all at once", GATEWAY, "spec strategy rollingUpdate maxUnavailable", "100%", "ends every gateway"
    ),
    Mistake(
        "one engine of many",
        ROUTES,
        FILE,
        replaced("dns+http://vllm-mtp3", "http://vllm-mtp3"),
        "dns+http://vllm-mtp3:8000 finds all",
    ),
    Mistake(
        "a sweep without its extras",
        SWEEP,
        f"{POD} containers sweep image",
        "r/ocr:1",
        "r/ocr:1 has no sweep",
    ),
    Mistake(
        "a buffer for streams",
        "Ingress/ocr-gateway",
        "metadata annotations nginx.ingress.kubernetes.io/proxy-buffering",
        "on",
        "holds streams back",
        of=NGINX,
    ),
    Mistake(
        "an Ingress for all pages",
        "Ingress/ocr-gateway",
        "spec rules 0 http paths 0 path",
        "/",
        "/ publishes /metrics and /status, too",
        of=NGINX,
    ),
    Mistake(
        "a route for all pages",
        "HTTPRoute/ocr-gateway",
        "spec rules 0 matches",
        GONE,
        "/ publishes /metrics and /status, too",
    ),
    Mistake(
        "a file elsewhere",
        GATEWAY,
        f"{CONTAINER} volumeMounts routes mountPath",
        "/etc/other",
        "the file is at /etc/other/routes.yaml",
    ),
    Mistake(
        "a map of another name",
        ROUTES,
        "metadata name",
        "ocr-gateway-routes-h2k4",
        "no pod mounts it",
        "ConfigMap/ocr-gateway-routes-h2k4",
    ),
    Mistake(
        "a secret in the rendering",
        ROUTES,
        "kind",
        "Secret",
        "`kubectl create secret` makes it",
        "Secret/ocr-gateway-routes",
    ),
    Mistake("a secret with its key", "Secret/ocr-gateway-keys", "", SECRET, "makes it"),
    Mistake("no ConfigMap", ROUTES, "", GONE, "no ConfigMap ocr-gateway-routes in this rendering", GATEWAY),
    Mistake("no ConfigMap to serve", ROUTES, "", GONE, "no ConfigMap with a routes.yaml is mounted", GATEWAY),
    Mistake("no Service of engines", "Service/vllm-plain", "", GONE, "no Service vllm-plain", ROUTES),
    Mistake("no budget", "PodDisruptionBudget/vllm-plain", "", GONE, "0 PodDisruptionBudgets match", PLAIN),
    Mistake(
        "engines of no Service",
        ROUTES,
        FILE,
        replaced("dns+http://vllm-mtp3:", "dns+http://vllm-mpt3:"),
        "no Service vllm-mpt3",
    ),
    Mistake(
        "engines at a wrong port", ROUTES, FILE, replaced("vllm-mtp3:8000", "vllm-mtp3:8001"), "no such port"
    ),
    Mistake(
        "engines behind one address", "Service/vllm-mtp3", "spec clusterIP", GONE, "must be None (headless)"
    ),
    Mistake(
        "engines of no pool",
        ROUTES,
        FILE,
        replaced("dns+http://vllm-plain:8000", "http://10.0.0.1:8000"),
        "no pool",
        PLAIN,
    ),
    Mistake(
        "arguments of another configuration",
        ROUTES,
        FILE,
        replaced("method: mtp", "method: eagle3"),
        '"eagle3", ',
        MTP3,
    ),
    Mistake("an argument that differs", PLAIN, f"{ENGINE} args 8", "128", "must be 256"),
    Mistake("an argument too few", PLAIN, f"{ENGINE} args", lambda args: args[:-1], "nothing must be 0"),
    Mistake("an argument twice", PLAIN, f"{ENGINE} args", plus("--port=8001"), "--port is there twice"),
    Mistake("a key for all to see", PLAIN, f"{ENGINE} args", plus("--api-key", "k"), "shows the key"),
    Mistake(
        "fewer GPUs than parts", MTP3, f"{ENGINE} args", plus("-tp", "2"), "1 GPUs; its arguments want 2"
    ),
    Mistake("more GPUs than parts", MTP3, f"{ENGINE} resources", GPUS, "8 GPUs; its arguments want 1"),
    Mistake("no shared memory", MTP3, f"{ENGINE} volumeMounts shm mountPath", "/shm", "at /dev/shm"),
    Mistake("no home", MTP3, f"{ENGINE} env HOME name", "HOUSE", "nothing must be a path in a volume"),
    Mistake("a cache elsewhere", MTP3, f"{ENGINE} env HF_HOME value", "/models", "/models must be a path in"),
    Mistake("another command", MTP3, f"{ENGINE} command", ["vllm", "bench"], "must be [vllm, serve]"),
    Mistake(
        "variables that are missing",
        MTP3,
        f"{ENGINE} env VLLM_MEDIA_URL_ALLOW_REDIRECTS",
        GONE,
        "None must be 0",
    ),
    Mistake(
        "a key that engines do not ask for",
        MTP3,
        f"{ENGINE} env VLLM_API_KEY",
        GONE,
        "comes from nowhere, and the pool's api_key from ocr-gateway-keys/engine-key",
    ),
    Mistake(
        "too short a grace", GATEWAY, f"{POD} terminationGracePeriodSeconds", 60, "60 s; an end takes up to"
    ),
    Mistake(
        "no grace for engines", MTP3, f"{POD} terminationGracePeriodSeconds", GONE, "30 s; an end takes up to"
    ),
    Mistake(
        "engines that end too soon",
        MTP3,
        f"{ENGINE} lifecycle preStop sleep seconds",
        5,
        "5 s; gateways send work for up to",
    ),
    Mistake(
        "a gateway that ends too soon", GATEWAY, f"{CONTAINER} lifecycle", GONE, "how long balancers need"
    ),
    Mistake(
        "a drain that cuts",
        ROUTES,
        FILE,
        lambda text: re.sub(r"drain_s: \d+", "drain_s: 60", text),
        "60 s would cut requests off",
    ),
    Mistake(
        "more gateways than shares",
        ROUTES,
        FILE,
        lambda text: re.sub(r"replicas: \d+", "replicas: 1", text),
        "engines are shared out among 1",
        GATEWAY,
        Combination("single-gpu"),
    ),
    Mistake(
        "a body too large for nginx",
        "Ingress/ocr-gateway",
        "metadata annotations nginx.ingress.kubernetes.io/proxy-body-size",
        "8m",
        "limits.body_bytes",
        of=NGINX,
    ),
    Mistake(
        "no patience of nginx",
        "Ingress/ocr-gateway",
        "metadata annotations nginx.ingress.kubernetes.io/proxy-read-timeout",
        GONE,
        "not set: 60",
        of=NGINX,
    ),
    Mistake(
        "no patience of a route",
        "HTTPRoute/ocr-gateway",
        "spec rules 0 timeouts request",
        "1m",
        "1m; a request may take",
    ),
    Mistake(
        "no embedded engine",
        GATEWAY,
        f"{CONTAINER} image",
        "ocr-gateway:0.5.0",
        "has no embedded engine",
        of=Combination("cpu-demo"),
    ),
    # Who gets in, and what gets out.
    Mistake("a way in without keys", ROUTES, "data extra", "", "is not set: whoever comes by", of=OPEN),
    Mistake(
        "a Service for the world without keys",
        "Service/ocr-gateway",
        "spec type",
        "LoadBalancer",
        "Service/ocr-gateway may use what costs GPUs",
        ROUTES,
        of=OPEN,
    ),
    Mistake("keys in no file", GATEWAY, f"{CONTAINER} volumeMounts keys", GONE, KEYLESS, ROUTES),
    Mistake("keys elsewhere", GATEWAY, f"{CONTAINER} volumeMounts keys mountPath", "/keys", KEYLESS, ROUTES),
    Mistake(
        "keys in a manifest",
        GATEWAY,
        f"{POD} volumes keys",
        {"name": "keys", "configMap": {"name": "ocr-gateway-routes"}},
        KEYLESS,
        ROUTES,
    ),
    Mistake(
        "keys that never change",
        GATEWAY,
        f"{CONTAINER} volumeMounts keys subPath",
        "keys",
        "would never see the keys change",
    ),
    Mistake(
        "a key of no Secret",
        GATEWAY,
        f"{POD} volumes keys secret items 0 key",
        "api-keys",
        "Secret ocr-gateway-keys has engine-key, keys, not api-keys",
    ),
    Mistake(
        "a file of another name",
        GATEWAY,
        f"{POD} volumes keys secret items 0 path",
        "api-keys",
        "has no keys, which auth.keys_file names",
    ),
    Mistake(
        "keys for all to read", GATEWAY, f"{POD} volumes keys secret defaultMode", GONE, "mode 0644, fsGroup"
    ),
    Mistake(
        "keys in an engine",
        MTP3,
        f"{POD} volumes",
        lambda volumes: [*volumes, {"name": "keys", "secret": {"secretName": "ocr-gateway-keys"}}],
        "has keys of Secret ocr-gateway-keys, which are for the gateway's file alone",
    ),
    Mistake(
        "keys in an engine by projection",
        MTP3,
        f"{POD} volumes",
        lambda volumes: [
            *volumes,
            {"name": "all", "projected": {"sources": [{"secret": {"name": "ocr-gateway-keys"}}]}},
        ],
        "has keys of Secret ocr-gateway-keys",
    ),
    Mistake(
        "keys in an environment",
        MTP3,
        f"{ENGINE} envFrom",
        [{"secretRef": {"name": "ocr-gateway-keys"}}],
        "has keys of Secret ocr-gateway-keys",
    ),
    Mistake(
        "keys in the gateway's environment",
        GATEWAY,
        f"{CONTAINER} env ENGINE_KEY valueFrom secretKeyRef key",
        "keys",
        "has keys of Secret ocr-gateway-keys",
    ),
    Mistake("keys for nobody", GATEWAY, f"{POD} securityContext fsGroup", GONE, "fsGroup not set"),
    Mistake(
        "an admin port for the ingress",
        POLICY,
        "spec ingress 0 ports",
        [{"port": 8000}, {"port": 9090}],
        "lets others than Prometheus in to the admin port 9090",
    ),
    Mistake(
        "an admin port in a range for the ingress",
        POLICY,
        "spec ingress 0 ports",
        [{"port": 8000, "endPort": 9090}],
        "lets others than Prometheus in to the admin port 9090",
    ),
    Mistake(
        "every port for the ingress", POLICY, "spec ingress 0 ports", GONE, "lets others than Prometheus"
    ),
    Mistake(
        "an admin port for all of a namespace",
        POLICY,
        "spec ingress 1 from 0 podSelector",
        GONE,
        "lets others than Prometheus",
    ),
    Mistake(
        "an admin port that a Service publishes",
        "Service/ocr-gateway",
        "spec ports",
        lambda ports: [*ports, {"name": "admin", "port": 9090, "targetPort": "admin"}],
        "leads to the admin port 9090",
    ),
    Mistake(
        "an admin port of no container",
        ROUTES,
        FILE,
        replaced("admin_port: 9090", "admin_port: 9091"),
        "9091 must be one by itself",
        GATEWAY,
    ),
    Mistake(
        "an admin port that is the other one",
        ROUTES,
        FILE,
        replaced("admin_port: 9090", "admin_port: 8000"),
        "8000 must be one by itself",
        GATEWAY,
    ),
    Mistake(
        "no admin port for Prometheus",
        ROUTES,
        FILE,
        lambda text: re.sub(r"  admin_port: .*\n", "", text),
        "/metrics wants a key",
        MONITOR,
    ),
    Mistake(
        "Prometheus kept out",
        POLICY,
        "spec ingress",
        lambda rules: rules[:1],
        "no NetworkPolicy lets Prometheus in",
        GATEWAY,
    ),
    Mistake(
        "metrics where there are none",
        MONITOR,
        "spec podMetricsEndpoints 0 port",
        "http",
        "/metrics is at the admin port 9090; at http there is none",
    ),
    Mistake(
        "a probe of the admin port",
        GATEWAY,
        f"{CONTAINER} livenessProbe httpGet port",
        "admin",
        "also answers where clients are refused",
    ),
    Mistake(
        "hosts that cannot be reached",
        ROUTES,
        FILE,
        lambda text: text + HOSTS,
        "no NetworkPolicy lets gateways out to fetch images",
    ),
    Mistake(
        "a way out that nobody needs",
        "NetworkPolicy/ocr-gateway-images",
        "metadata labels team",
        "a",
        "lists no host",
        of=FETCHING,
    ),
    Mistake(
        "too much memory for bodies",
        ROUTES,
        FILE,
        replaced("limits:    # infl", "limits:\n  inflight_bytes: 2000000000    # infl"),
        "2000000000 bytes, and the pod may have 3221225472",
    ),
    Mistake(
        "a collector out of reach",
        "NetworkPolicy/ocr-gateway-tracing",
        "",
        GONE,
        "no NetworkPolicy lets gateways out to port 4318",
        GATEWAY,
        TRACED,
    ),
    Mistake(
        "a collector's other port",
        GATEWAY,
        f"{CONTAINER} env OTEL_EXPORTER_OTLP_ENDPOINT value",
        "http://otel-collector.monitoring:4317",
        "4317 is gRPC's",
        of=TRACED,
    ),
    Mistake(
        "a collector without a scheme",
        GATEWAY,
        f"{CONTAINER} env OTEL_EXPORTER_OTLP_ENDPOINT value",
        "otel-collector.monitoring:4318",
        "is no http(s) URL",
        of=TRACED,
    ),
    # Autoscalers.
    Mistake(
        "a wrong field of a ScaledObject",
        "ScaledObject/vllm-mtp3",
        "spec maxReplicas",
        4,
        "'maxReplicas' is no field",
    ),
    Mistake(
        "a ScaledObject of nobody",
        "ScaledObject/vllm-mtp3",
        "spec scaleTargetRef name",
        "vllm-mpt3",
        "no StatefulSet vllm-mpt3",
    ),
    Mistake(
        "a ScaledObject of a Deployment",
        "ScaledObject/vllm-mtp3",
        "spec scaleTargetRef kind",
        "Deployment",
        "no Deployment vllm-mtp3",
    ),
    Mistake(
        "more at least than at most",
        "ScaledObject/vllm-plain",
        "spec minReplicaCount",
        9,
        "at least 9 and at most 8",
    ),
    Mistake(
        "more gateways than shares, scaled",
        "ScaledObject/ocr-gateway",
        "spec maxReplicaCount",
        99,
        "up to 99 gateways",
    ),
    Mistake(
        "nobody to ask",
        "ScaledObject/vllm-mtp3",
        "spec triggers 0 metadata serverAddress",
        GONE,
        "is missing",
    ),
    Mistake(
        "no number",
        "ScaledObject/vllm-mtp3",
        "spec triggers 0 metadata threshold",
        "one",
        "'one' is not a number",
    ),
    Mistake(
        "no data that counts as 0",
        "ScaledObject/vllm-mtp3",
        "spec triggers 0 metadata ignoreNullValues",
        "true",
        "no data would count as 0",
    ),
    Mistake(
        "replicas that undo the scaling", MTP3, "spec replicas", 1, "must not be set: ScaledObject/vllm-mtp3"
    ),
    Mistake(
        "a budget that scaling makes a lock",
        "PodDisruptionBudget/vllm-mtp3",
        "spec",
        lambda spec: {"minAvailable": 1, "selector": spec["selector"]},
        "may ever be evicted",
    ),
    Mistake(
        "a metric that an autoscaler misses",
        "ScaledObject/vllm-mtp3",
        "spec triggers 0 metadata query",
        "max(ocr_gateway:pool_demand:engine)",
        "no gateway exports ocr_gateway:pool_demand:engine,",
    ),
    Mistake(
        "a pool that an autoscaler misses",
        "ScaledObject/vllm-mtp3",
        "spec triggers 0 metadata query",
        replaced("mtp3", "mpt3"),
        "no pool mpt3 in routes.yaml, which has mtp3, plain",
    ),
    Mistake(
        "a model that an autoscaler misses",
        ROUTES,
        FILE,
        replaced("model: glm-ocr", "model: glm"),
        "no model glm-ocr in routes.yaml",
        "ScaledObject/ocr-gateway",
    ),
    Mistake(
        "a plain autoscaler's metric",
        "HorizontalPodAutoscaler/vllm-mtp3",
        "spec metrics 0 external metric name",
        "ocr_gateway_pool_demand",
        "no gateway exports ocr_gateway_pool_demand,",
        of=HPA,
    ),
    Mistake(
        "a plain autoscaler's pool",
        "HorizontalPodAutoscaler/vllm-mtp3",
        "spec metrics 0 external metric selector matchLabels pool",
        "deep",
        "no pool deep in routes.yaml",
        of=HPA,
    ),
    Mistake(
        "a plain autoscaler's wrong field",
        "HorizontalPodAutoscaler/ocr-gateway",
        "spec maxReplicaCount",
        6,
        "'maxReplicaCount' is no field",
        of=HPA,
    ),
    Mistake(
        "too many gateways by a plain autoscaler",
        "HorizontalPodAutoscaler/ocr-gateway",
        "spec maxReplicas",
        60,
        "up to 60 gateways",
        of=HPA,
    ),
    Mistake(
        "nobody left",
        "ScaledObject/vllm-mtp3",
        "spec minReplicaCount",
        GONE,
        "no request waits until one is back",
    ),
    Mistake(
        "a copied query",
        "ScaledObject/vllm-mtp3",
        "spec triggers 0 metadata query",
        replaced('"mtp3"', '"plain"'),
        "asks for pool plain, and scales pool mtp3",
    ),
    Mistake("idlers", "ScaledObject/vllm-mtp3", "spec idleReplicaCount", 0, "may end all replicas"),
    Mistake(
        "each for itself",
        "ScaledObject/vllm-mtp3",
        "spec triggers 0 metricType",
        "Value",
        "must be AverageValue",
    ),
    Mistake(
        "no address",
        "ScaledObject/vllm-mtp3",
        "spec triggers 0 metadata serverAddress",
        "prometheus.monitoring:9090",
        "must begin with http://",
    ),
    # Series.
    Mistake("no dashboard", DASHBOARD, "data ocr-gateway.json", lambda text: text[:-9], "not a JSON object"),
    Mistake(
        "a metric that does not exist",
        "PrometheusRule/ocr-gateway",
        "spec groups 0 rules 0 expr",
        "sum(ocr_gateway_wating)",
        "no gateway exports ocr_gateway_wating",
    ),
    Mistake(
        "a label that does not exist",
        "PrometheusRule/ocr-gateway",
        "spec groups 0 rules 0 expr",
        'ocr_gateway_waiting{pol="x"}',
        "has no label pol",
    ),
    Mistake(
        "a sum by a label of nothing",
        "PrometheusRule/ocr-gateway",
        "spec groups 0 rules 0 expr",
        "sum by (rout) (ocr_gateway_waiting)",
        "has the label rout",
    ),
    Mistake(
        "no PromQL",
        "PrometheusRule/ocr-gateway",
        "spec groups 0 rules 0 expr",
        "sum(ocr_gateway_waiting",
        "is not PromQL",
    ),
    Mistake(
        "a rule that a dashboard misses",
        "PrometheusRule/ocr-gateway",
        "spec groups",
        lambda groups: groups[1:],
        "no gateway exports ocr_gateway:",
        DASHBOARD,
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_found_and_its_object_named(mistake: Mistake) -> None:
    documents, changed = edited(mistake)
    found = list(schemas.check(changed)) or policy(documents)
    assert any(
        problem.name == (mistake.told or mistake.name) and mistake.text in problem.text for problem in found
    ), "\n".join(map(str, found)) or "nothing was found"


def test_an_engine_may_have_arguments_beyond_the_configurations_and_the_gpus_for_them() -> None:
    def larger(container: dict[str, Any]) -> dict[str, Any]:
        more = ["--tensor-parallel-size=8", "--revision", "0123abc", "--gpu-memory-utilization", "0.95"]
        return container | {"args": [*container["args"], *more], "resources": GPUS}

    documents, _ = edited(Mistake("none", MTP3, ENGINE, larger, ""))
    assert list(map(str, problems(documents))) == []


def test_an_image_by_digest_may_be_any() -> None:
    image = f"registry.example/ocr@sha256:{'0' * 64}"
    mistake = Mistake("", GATEWAY, f"{CONTAINER} image", image, "", of=Combination("cpu-demo"))
    assert problems(edited(mistake)[0]) == []


def fetching(edit: Callable[[dict[str, Any]], object]) -> list[str]:
    documents = list(rendered(FETCHING))
    for index, document in enumerate(documents):
        if name_of(document) in (ROUTES, "NetworkPolicy/ocr-gateway-images"):
            documents[index] = document = copy.deepcopy(document)
            if name_of(document) == ROUTES:
                document["data"]["routes.yaml"] += HOSTS
            else:
                edit(document["spec"]["egress"][0]["to"][0]["ipBlock"])
    return [str(one) for one in policy(documents) if one.name.startswith("NetworkPolicy")]


def test_gateways_that_fetch_images_reach_the_internet_and_no_clouds_metadata() -> None:
    assert fetching(lambda block: None) == []
    assert fetching(lambda block: block["except"].remove("10.0.0.0/8")) == []
    (problem,) = fetching(lambda block: block["except"].remove("169.254.0.0/16"))
    assert "must except 169.254.0.0/16" in problem


def test_a_key_in_the_open_is_not_printed() -> None:
    documents, _ = edited(Mistake("", ROUTES, FILE, replaced("${ENGINE_KEY:-}", "sk-1234"), ""))
    told = "".join(map(str, problems(documents)))
    assert "api_key" in told
    assert "sk-1234" not in told


def paths(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Every path of keys and numbers in a document."""
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(entry, dict | list):
            yield from paths(entry, *path, key)


@settings(max_examples=40)
@given(st.data())
def test_whatever_is_wrong_the_checks_come_to_an_end(data: st.DataObject) -> None:
    documents = list(rendered(data.draw(st.sampled_from([FULL, HPA, NGINX]))))
    index = data.draw(
        st.sampled_from([i for i, one in enumerate(documents) if one["kind"] != "PrometheusRule"])
    )
    documents[index] = found = copy.deepcopy(documents[index])
    *path, last = data.draw(st.sampled_from(list(paths(found))))
    for key in path:
        found = found[key]
    value = data.draw(st.sampled_from([GONE, None, {}, [], "x", 0, -1, True]))
    if value is GONE:
        del found[last]
    else:
        found[last] = value
    assert isinstance(list(schemas.check([documents[index]])) or policy(documents), list)


def test_the_adapters_names_are_those_that_the_plain_autoscalers_ask_for() -> None:
    values = yaml.safe_load((KUBERNETES / "components/hpa/prometheus-adapter.yaml").read_text())
    served = {
        rule["name"]["as"]: names(rule["seriesQuery"]).series.keys() for rule in values["rules"]["external"]
    }
    assert all({name} == {one.replace(":", "_") for one in series} for name, series in served.items())
    asked = {name for one in by_scalers(Rendering(rendered(HPA))) for name in names(one.expr).series}
    assert asked == served.keys()
