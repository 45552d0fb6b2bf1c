"""The gateway's configuration against what is around it: engines, arguments, time to end, limits in front."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from deploy.checks import autoscaling, series
from deploy.checks.network import evictable, fewest, scalers
from deploy.checks.objects import ENGINE, GATEWAY, POOL, SWEEP, Problem, at, name_of, namespace_of
from deploy.checks.pods import quantity
from gateway.cli import _parser
from gateway.config import EMBEDDED, load, require_safe
from gateway.engine_args import arguments, environment
from gateway.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Container, Document, Pod, Rendering
    from gateway.config import Config, Pool

ROUTES = "routes.yaml"
# After the drain the server takes this long at most to send the last bytes (gateway.app).
LAST_BYTES_S = 5
# An address goes after two answers that lack it, each up to 1.2 resolve_s after the last (gateway.discovery).
ANSWERS, JITTER = 2, 1.2
# How long DNS may go on naming an engine that has left: CoreDNS's own cache.
DNS_CACHE_S = 30
# What an end takes beyond its parts; vLLM 0.32 that had drained took some 8 s more (seen on a busy CPU).
GATEWAY_MARGIN_S, ENGINE_MARGIN_S = 5, 15

# What `kubectl apply` can keep of an object in its annotation.
_APPLIED_BYTES = 256 * 1024
_GRACE_S = 30  # Kubernetes' own
_DURATION = re.compile(r"([0-9]+)(h|ms|m|s)")
# What is for the operator, on the port that clients reach.
_PAGES = ("/metrics", "/status")
# Where an engine keeps what it loads and compiles; its root file system cannot be written to.
_CACHES = ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
# By how many GPUs one engine is divided.
_PARALLEL = (
    ("--tensor-parallel-size", "-tp"),
    ("--pipeline-parallel-size", "-pp"),
    ("--data-parallel-size", "-dp"),
)
_NGINX = "nginx.ingress.kubernetes.io/"


@dataclass(frozen=True)
class Served:
    """A gateway's container with the configuration that is mounted into it."""

    pod: Pod
    container: Container
    config_map: Document
    config: Config

    @property
    def life_s(self) -> float:
        """How long the longest request may take: total_s begins when it has left the queue."""
        return max(route.queue.max_wait_s + route.timeouts.total_s for route in self.config.routes.values())

    @property
    def life(self) -> str:
        """The same, in words."""
        return f"a request may take {self.life_s:g} s (queue.max_wait_s + timeouts.total_s)"


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
    for served in found:
        if served.pod.component == GATEWAY:
            yield from _gateway(rendering, served)
            yield from _engines(rendering, served)
            yield from _in_front(rendering, served)
            yield from _asked(rendering, served)
    if not any(served.pod.component == GATEWAY for served in found):
        yield from _unserved(rendering)
        return
    known = {pod.name for served in found for _, _, pod in _reached(rendering, served)}
    for pod in rendering.pods:
        if pod.component == ENGINE and pod.name not in known:
            yield Problem(pod.name, "spec", f"no pool of a {ROUTES} leads to these engines")


def _unserved(rendering: Rendering) -> Iterator[Problem]:
    """Gateways without a configuration; one that is invalid has been told already."""
    mounting = {
        pod.name
        for config_map in rendering.of("ConfigMap")
        if ROUTES in at(config_map, "data")
        for pod, _, _ in _mounted(rendering, config_map)
    }
    for pod in rendering.pods:
        if pod.component == GATEWAY and pod.name not in mounting:
            yield Problem(pod.name, f"{pod.path}.volumes", f"no ConfigMap with a {ROUTES} is mounted")


def _routes(rendering: Rendering, config_map: Document, found: list[Served]) -> Iterator[Problem]:
    """Check one configuration in each container that mounts it; where it is valid it is added to `found`."""
    name = name_of(config_map)
    if config_map.get("immutable"):
        yield Problem(name, "immutable", "is true: running gateways could not take a change over")
    mounted = list(_mounted(rendering, config_map))
    if not mounted:
        yield Problem(name, f"data[{ROUTES}]", "no pod mounts it")
    for pod, container, mount in mounted:
        where = f"{container.where}.volumeMounts[{mount['name']}]"
        if "subPath" in mount or "subPathExpr" in mount:
            yield Problem(
                pod.name, where, "by subPath: the file would never follow a change of the ConfigMap"
            )
        wanted = f"{mount.get('mountPath', '').rstrip('/')}/{ROUTES}"
        told = _option(container.args, "--config")
        if told != wanted:
            yield Problem(pod.name, f"{container.where}.args", f"--config is {told}; the file is at {wanted}")
        try:
            files = _files(rendering, pod, mount["name"])
            config = read(frozenset(files.items()), frozenset(_variables(container).items()))
        except ConfigError as error:
            for line in str(error).splitlines():
                yield Problem(name, f"data[{ROUTES}]", line)
        else:
            found.append(Served(pod, container, config_map, config))


@cache
def read(files: frozenset[tuple[str, str]], variables: frozenset[tuple[str, str]]) -> Config:
    """Validate a routes.yaml as `ocr-gateway check` does, among the files that are mounted with it.

    Raises:
        ConfigError: with every problem found.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
        try:
            config = load(folder / ROUTES, dict(variables))
            require_safe(config, folder / ROUTES)
        except ConfigError as error:
            raise ConfigError([line.replace(f"{name}/", "") for line in str(error).splitlines()]) from None
    return config


def _mounted(rendering: Rendering, config_map: Document) -> Iterator[tuple[Pod, Container, Document]]:
    for pod in rendering.pods:
        if pod.namespace != namespace_of(config_map):
            continue
        name = config_map["metadata"]["name"]
        volumes = {
            volume["name"]
            for volume in pod.spec.get("volumes") or ()
            if any(source.get("name") == name for source in _sources(volume))
        }
        for container in pod.containers:
            for mount in container.spec.get("volumeMounts") or ():
                if mount["name"] in volumes:
                    yield pod, container, mount


def _sources(volume: Document) -> list[Document]:
    """The ConfigMaps of a volume, with the keys and paths that are taken of them."""
    sources = [volume, *(at(volume, "projected", "sources") or ())]
    return [source["configMap"] for source in sources if "configMap" in source]


def _files(rendering: Rendering, pod: Pod, name: str) -> dict[str, str]:
    """The files of a pod's volume, by their paths."""
    (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == name)
    files: dict[str, str] = {}
    for source in _sources(volume):
        data = at(rendering.find("ConfigMap", source.get("name"), pod.namespace) or {}, "data")
        items = source.get("items") or [{"key": key, "path": key} for key in data]
        files |= {item["path"]: data[item["key"]] for item in items if item["key"] in data}
    return files


def _option(words: list[str], option: str) -> str | None:
    """Return an option's value, written `--option=value` or `--option value`."""
    for word, following in itertools.zip_longest(words, words[1:]):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _variables(container: Container) -> dict[str, str]:
    """The container's environment: its values, and in place of a secret's where it is kept."""
    found = {}
    for name, variable in container.env.items():
        source = at(variable, "valueFrom", "secretKeyRef") or at(variable, "valueFrom", "configMapKeyRef")
        if source.get("optional"):
            continue
        found[name] = (
            f"{source.get('name')}/{source.get('key')}" if source else str(variable.get("value", ""))
        )
    return found


def _secrets(container: Container) -> set[str]:
    """Where in secrets the container's environment comes from."""
    found = (at(variable, "valueFrom", "secretKeyRef") for variable in container.env.values())
    return {f"{source.get('name')}/{source.get('key')}" for source in found if source}


def _gateway(rendering: Rendering, served: Served) -> Iterator[Problem]:
    pod, container, config = served.pod, served.container, served.config
    server, name = config.server, name_of(served.config_map)
    for pool, settings in config.pools.items():
        if settings.api_key and settings.api_key not in _secrets(container):
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
    sleep = _pre_stop(container)
    if not sleep:
        yield Problem(
            pod.name, f"{container.where}.lifecycle.preStop.sleep", "is missing: how long balancers need"
        )
    needed = math.ceil(sleep + server.linger_s + server.drain_s + LAST_BYTES_S + GATEWAY_MARGIN_S)
    grace = pod.spec.get("terminationGracePeriodSeconds", _GRACE_S)
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
        image = str(container.spec.get("image", ""))
        if not image.partition("@")[0].endswith("-embedded"):
            yield Problem(
                pod.name,
                f"{container.where}.image",
                f"{image} has no embedded engine; the tag {'-embedded'!r} has",
            )


def _command(pod: Pod, container: Container) -> Iterator[Problem]:
    """The arguments of `ocr-gateway`, the image's entry point, are read by its own parser."""
    if "command" in container.spec:
        return
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = _parser().parse_args(container.args)
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


def _pre_stop(container: Container) -> int:
    """Seconds that a container sleeps before SIGTERM; 0 where it does not."""
    return int(at(container.spec, "lifecycle", "preStop", "sleep", "seconds") or 0)


def _service(rendering: Rendering, served: Served, host: str) -> tuple[str, Document | None] | None:
    """The Service that a host names, by name and as it stands in the rendering; None for a host outside."""
    name, _, rest = host.partition(".")
    space = rest.partition(".")[0] or served.pod.namespace
    if rest and ".svc" not in f".{rest}." and space != served.pod.namespace:
        return None
    return name, rendering.find("Service", name, space)


def _reached(rendering: Rendering, served: Served) -> Iterator[tuple[str, str, Pod]]:
    """Yield pool, engine URL and pods for every engine that is a Service of the rendering."""
    for pool, settings in served.config.pools.items():
        for engine in settings.engines:
            found = _service(rendering, served, urlsplit(engine.removeprefix("dns+")).hostname or "")
            if engine != EMBEDDED and found and (service := found[1]):
                selector = {"matchLabels": at(service, "spec", "selector")}
                for pod in rendering.selected(selector, namespace_of(service)):
                    yield pool, engine, pod


def _engines(rendering: Rendering, served: Served) -> Iterator[Problem]:
    name = name_of(served.config_map)
    for pool, settings in served.config.pools.items():
        where = f"data[{ROUTES}].pools.{pool}.engines"
        for engine in settings.engines:
            if engine == EMBEDDED:
                continue
            url = urlsplit(engine.removeprefix("dns+"))
            found = _service(rendering, served, url.hostname or "")
            if found is None:
                continue
            service = found[1]
            if service is None:
                there = rendering.names("Service", served.pod.namespace)
                yield Problem(name, where, f"{engine}: no Service {found[0]}; there are: {there}")
                continue
            ports = [port["port"] for port in at(service, "spec", "ports") or ()]
            if (url.port or 80) not in ports:
                yield Problem(name, where, f"{engine}: Service {found[0]} has no such port; it has {ports}")
            if engine.startswith("dns+") and at(service, "spec", "clusterIP") != "None":
                yield Problem(
                    name_of(service),
                    "spec.clusterIP",
                    f"must be None (headless): {engine} asks for every engine's address, and would get one",
                )
            if not engine.startswith("dns+") and at(service, "spec", "clusterIP") == "None":
                text = f"{engine} finds one of headless Service {found[0]}'s engines; dns+{engine} finds all"
                yield Problem(name, where, text)
            if at(service, "spec", "publishNotReadyAddresses") is True:
                yield Problem(
                    name_of(service),
                    "spec.publishNotReadyAddresses",
                    "must be false: engines that end must leave it",
                )
    for pool, engine, pod in _reached(rendering, served):
        yield from _engine(served, pool, engine, pod)


def _engine(served: Served, pool: str, engine: str, pod: Pod) -> Iterator[Problem]:
    config, settings = served.config, served.config.pools[pool]
    port = urlsplit(engine.removeprefix("dns+")).port or 80
    if pod.labels.get(POOL) != pool:
        yield Problem(
            pod.name,
            "spec.template.metadata.labels",
            f"{POOL} is {pod.labels.get(POOL)}; {engine} is in pool {pool}",
        )
    container = next((one for one in pod.containers if port in one.ports.values()), None)
    if container is None:
        yield Problem(
            pod.name,
            f"{pod.path}.containers",
            f"none has port {port}, where {engine} leads; it has {pod.told_ports()}",
        )
        return
    where = container.where
    if container.spec.get("command") != ["vllm", "serve"]:
        yield Problem(pod.name, f"{where}.command", f"{container.spec.get('command')} must be [vllm, serve]")
    yield from _engine_arguments(pod, container, pool, arguments(config, pool, engine))
    yield from _engine_environment(served, settings, pod, container)
    yield from _engine_resources(pod, container)
    if pod.spec.get("enableServiceLinks") is not False:
        yield Problem(
            pod.name,
            f"{pod.path}.enableServiceLinks",
            "must be false: a Service called vllm would set VLLM_PORT, which vLLM reads, to an address",
        )
    yield from _engine_end(config, pod, container)


def _engine_arguments(pod: Pod, container: Container, pool: str, expected: list[str]) -> Iterator[Problem]:
    """What the configuration says comes first, and nothing that an operator adds behind it says otherwise."""
    where = f"{container.where}.args"
    own, more = container.args[: len(expected)], container.args[len(expected) :]
    for index, (found, wanted) in enumerate(itertools.zip_longest(own, expected, fillvalue="nothing")):
        if found != wanted:
            yield Problem(
                pod.name,
                f"{where}[{index}]",
                f"{found} must be {wanted}; `ocr-gateway engine-args --config ... --pool {pool} --kustomize` "
                "writes them, and what you add comes after them",
            )
            return
    for option in (word.partition("=")[0] for word in more if word.startswith("-")):
        if option in expected:
            yield Problem(pod.name, where, f"{option} is there twice; {ROUTES} says what it is")
        if option == "--api-key":
            yield Problem(
                pod.name, where, "--api-key shows the key to all; VLLM_API_KEY has it from the Secret"
            )


def _engine_resources(pod: Pod, container: Container) -> Iterator[Problem]:
    where = container.where
    limits = at(container.spec, "resources", "limits").items()
    gpus = sum(quantity(number) for key, number in limits if "/" in key)
    words = [_option(container.args, option) for options in _PARALLEL for option in options]
    wanted = math.prod(int(word) for word in words if word and word.isdecimal())
    if not gpus:
        yield Problem(pod.name, f"{where}.resources.limits", "no GPU is asked for, such as nvidia.com/gpu: 1")
    elif gpus != wanted:
        text = f"{gpus:f} GPUs; its arguments want {wanted} (tensor x pipeline x data parallel)"
        yield Problem(pod.name, f"{where}.resources.limits", text)
    writable = [mount.get("mountPath", "").rstrip("/") for mount in container.writable]
    if "/dev/shm" not in writable:  # noqa: S108 - vLLM's processes share memory there
        text = "nothing is mounted at /dev/shm: 64 MiB are too little for vLLM's processes"
        yield Problem(pod.name, f"{where}.volumeMounts", text)
    for key in _CACHES:
        path = str(at(container.env, key, "value") or "")
        if (path or key == "HOME") and not any(f"{path}/".startswith(f"{one}/") for one in writable):
            text = f"{path or 'nothing'} must be a path in a volume: the root file system is read-only"
            yield Problem(pod.name, f"{where}.env[{key}]", text)


def _engine_end(config: Config, pod: Pod, container: Container) -> Iterator[Problem]:
    """Engines end when no gateway sends them work any more; the next one when gateways know the new one."""
    where, resolve_s = container.where, config.polling.resolve_s
    known_s = math.ceil(JITTER * resolve_s) + DNS_CACHE_S
    if pod.owner["spec"].get("minReadySeconds", 0) < known_s:
        yield Problem(
            pod.name,
            "spec.minReadySeconds",
            f"{pod.owner['spec'].get('minReadySeconds', 0)} s; an update may go on when gateways know the "
            f"new engine: {known_s} s, {JITTER} x resolve_s {resolve_s:g} + {DNS_CACHE_S} of DNS caches",
        )
    sleep, least = _pre_stop(container), math.ceil(ANSWERS * JITTER * resolve_s) + DNS_CACHE_S
    if sleep < least:
        yield Problem(
            pod.name,
            f"{where}.lifecycle.preStop.sleep.seconds",
            f"{sleep} s; gateways send work for up to {least} s more: {ANSWERS} x {JITTER} x resolve_s "
            f"{resolve_s:g} + {DNS_CACHE_S} of DNS caches",
        )
    shutdown = math.ceil(config.server.drain_s)
    grace, needed = (
        pod.spec.get("terminationGracePeriodSeconds", _GRACE_S),
        sleep + shutdown + ENGINE_MARGIN_S,
    )
    if grace < needed:
        yield Problem(
            pod.name,
            f"{pod.path}.terminationGracePeriodSeconds",
            f"{grace} s; an end takes up to {needed} s: preStop {sleep} + --shutdown-timeout {shutdown} + "
            f"{ENGINE_MARGIN_S} to spare",
        )


def _engine_environment(served: Served, pool: Pool, pod: Pod, container: Container) -> Iterator[Problem]:
    variables, secrets = _variables(container), _secrets(container) | _secrets(served.container)
    for key, value in environment(served.config).items():
        if variables.get(key) != value:
            yield Problem(pod.name, f"{container.where}.env[{key}]", f"{variables.get(key)} must be {value}")
    key, text = variables.get("VLLM_API_KEY", ""), "comes from {}, and the pool's api_key from {}"
    if key != pool.api_key:
        told = text.format(_source(key, secrets), _source(pool.api_key, secrets))
        yield Problem(pod.name, f"{container.where}.env[VLLM_API_KEY]", told)


def _source(key: str, secrets: set[str]) -> str:
    """Where a key comes from, in words; one that stands in a manifest is not repeated."""
    return key if key in secrets else "a manifest" if key else "nowhere"


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
    for one in series.by_scalers(rendering):
        with contextlib.suppress(ValueError):  # what is no PromQL is told elsewhere
            for label, value in sorted(series.names(one.expr).values):
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
