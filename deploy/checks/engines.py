"""Engines against the configuration: where they are found, arguments, what they run on, time to end."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from deploy.checks.objects import POOL, at, name_of, named, namespace_of
from deploy.checks.pods import quantity
from deploy.checks.served import GRACE_S, ROUTES, option, pre_stop, secrets_of, variables_of
from gateway.config import EMBEDDED
from gateway.tools.engine_args import arguments, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.checks.objects import Container, Document, Findings, Pod, Problem, Rendering
    from deploy.checks.served import Served
    from gateway.config import Config, Pool

# An address goes after two answers that lack it, each up to 1.2 resolve_s after the one before.
ANSWERS, JITTER = 2, 1.2
# How long DNS may go on naming an engine that has left: CoreDNS's own cache.
DNS_CACHE_S = 30
# What an end takes beyond its parts; vLLM 0.32 that had drained took some 8 s more (seen on a busy CPU).
ENGINE_MARGIN_S = 15

# Where an engine keeps what it loads and compiles; its root file system cannot be written to.
_CACHES = ("HOME", "HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
# By how many GPUs one engine is divided, each option with its short form.
_PARALLEL = (
    *("--tensor-parallel-size", "-tp"),
    *("--pipeline-parallel-size", "-pp"),
    *("--data-parallel-size", "-dp"),
)


def _service(rendering: Rendering, served: Served, host: str) -> tuple[str, Document | None] | None:
    """The Service that a host names, by name and as it stands in the rendering; None for a host outside."""
    name, _, rest = host.partition(".")
    space = rest.partition(".")[0] or served.pod.namespace
    if rest and ".svc" not in f".{rest}." and space != served.pod.namespace:
        return None
    return name, rendering.find("Service", name, space)


def reached(rendering: Rendering, served: Served) -> Iterator[tuple[str, str, Pod]]:
    """Yield pool, engine URL and pods for every engine that is a Service of the rendering."""
    for pool, settings in served.config.pools.items():
        for engine in settings.engines:
            found = _service(rendering, served, urlsplit(engine.removeprefix("dns+")).hostname or "")
            if engine != EMBEDDED and found and (service := found[1]):
                selector = {"matchLabels": at(service, "spec", "selector")}
                for pod in rendering.selected(selector, namespace_of(service)):
                    yield pool, engine, pod


def check(rendering: Rendering, served: Served) -> Iterator[Problem]:
    """Yield what is wrong with the engines that a configuration names."""
    for pool, settings in served.config.pools.items():
        for engine in settings.engines:
            host = urlsplit(engine.removeprefix("dns+")).hostname or ""
            found = None if engine == EMBEDDED else _service(rendering, served, host)
            if found:
                entry = _entry(rendering, served, pool, engine, *found)
                yield from named(name_of(served.config_map), entry)
            if found and (service := found[1]):
                yield from named(name_of(service), _headless(service, engine))
    for pool, engine, pod in reached(rendering, served):
        yield from named(pod.name, _engine(served, pool, engine, pod))


def _entry(
    rendering: Rendering, served: Served, pool: str, engine: str, name: str, service: Document | None
) -> Findings:
    """An entry of a pool's engines, and the Service that it names."""
    where = f"data[{ROUTES}].pools.{pool}.engines"
    if service is None:
        there = rendering.names("Service", served.pod.namespace)
        yield where, f"{engine}: no Service {name}; there are: {there}"
        return
    ports = [port["port"] for port in at(service, "spec", "ports") or ()]
    if _port(engine) not in ports:
        yield where, f"{engine}: Service {name} has no such port; it has {ports}"
    if not engine.startswith("dns+") and at(service, "spec", "clusterIP") == "None":
        yield where, f"{engine} finds one of headless Service {name}'s engines; dns+{engine} finds all"


def _headless(service: Document, engine: str) -> Findings:
    if engine.startswith("dns+") and at(service, "spec", "clusterIP") != "None":
        text = f"must be None (headless): {engine} asks for every engine's address, and would get one"
        yield "spec.clusterIP", text
    if at(service, "spec", "publishNotReadyAddresses") is True:
        yield "spec.publishNotReadyAddresses", "must be false: engines that end must leave it"


def _port(engine: str) -> int:
    return urlsplit(engine.removeprefix("dns+")).port or 80


def _engine(served: Served, pool: str, engine: str, pod: Pod) -> Findings:
    config, port = served.config, _port(engine)
    if pod.labels.get(POOL) != pool:
        text = f"{POOL} is {pod.labels.get(POOL)}; {engine} is in pool {pool}"
        yield "spec.template.metadata.labels", text
    container = next((one for one in pod.containers if port in one.ports.values()), None)
    if container is None:
        text = f"none has port {port}, where {engine} leads; it has {pod.ports_text()}"
        yield f"{pod.path}.containers", text
        return
    if container.spec.get("command") != ["vllm", "serve"]:
        text = f"{container.spec.get('command')} must be [vllm, serve]"
        yield f"{container.where}.command", text
    yield from _arguments(container, pool, arguments(config, pool, engine))
    yield from _environment(served, config.pools[pool], container)
    yield from _resources(container)
    if pod.spec.get("enableServiceLinks") is not False:
        text = "must be false: a Service called vllm would set VLLM_PORT, which vLLM reads, to an address"
        yield f"{pod.path}.enableServiceLinks", text
    yield from _end(config, pod, container)


def _arguments(container: Container, pool: str, expected: list[str]) -> Findings:
    """What the configuration says comes first, and nothing that an operator adds behind it says otherwise."""
    where = f"{container.where}.args"
    own, more = container.args[: len(expected)], container.args[len(expected) :]
    for index, (found, wanted) in enumerate(itertools.zip_longest(own, expected, fillvalue="nothing")):
        if found != wanted:
            command = f"`ocr-gateway engine-args --config ... --pool {pool} --kustomize`"
            text = f"{found} must be {wanted}; {command} writes them, and what you add comes after them"
            yield f"{where}[{index}]", text
            return
    for added in (word.partition("=")[0] for word in more if word.startswith("-")):
        if added in expected:
            yield where, f"{added} is there twice; {ROUTES} says what it is"
        if added == "--api-key":
            yield where, "--api-key shows the key to all; VLLM_API_KEY has it from the Secret"


def _resources(container: Container) -> Findings:
    where = container.where
    limits = at(container.spec, "resources", "limits").items()
    gpus = sum(quantity(number) for key, number in limits if "/" in key)
    words = [option(container.args, name) for name in _PARALLEL]
    wanted = math.prod(int(word) for word in words if word and word.isdecimal())
    if not gpus:
        yield f"{where}.resources.limits", "no GPU is asked for, such as nvidia.com/gpu: 1"
    elif gpus != wanted:
        text = f"{gpus:f} GPUs; its arguments want {wanted} (tensor x pipeline x data parallel)"
        yield f"{where}.resources.limits", text
    writable = [mount.get("mountPath", "").rstrip("/") for mount in container.writable]
    if "/dev/shm" not in writable:  # noqa: S108 - vLLM's processes share memory there
        text = "nothing is mounted at /dev/shm: 64 MiB are too little for vLLM's processes"
        yield f"{where}.volumeMounts", text
    for key in _CACHES:
        path = str(at(container.env, key, "value") or "")
        if (path or key == "HOME") and not any(f"{path}/".startswith(f"{one}/") for one in writable):
            text = f"{path or 'nothing'} must be a path in a volume: the root file system is read-only"
            yield f"{where}.env[{key}]", text


def _end(config: Config, pod: Pod, container: Container) -> Findings:
    """Engines end when no gateway sends them work any more; the next one when gateways know the new one."""
    resolve_s, ready_s = config.polling.resolve_s, pod.owner["spec"].get("minReadySeconds", 0)
    known_s = math.ceil(JITTER * resolve_s) + DNS_CACHE_S
    if ready_s < known_s:
        text = f"{ready_s} s; an update may go on when gateways know the new engine: {known_s} s, "
        yield (
            "spec.minReadySeconds",
            f"{text}{JITTER} x resolve_s {resolve_s:g} + {DNS_CACHE_S} of DNS caches",
        )
    sleep, least = pre_stop(container), math.ceil(ANSWERS * JITTER * resolve_s) + DNS_CACHE_S
    if sleep < least:
        text = f"{sleep} s; gateways send work for up to {least} s more: {ANSWERS} x {JITTER} x resolve_s "
        text += f"{resolve_s:g} + {DNS_CACHE_S} of DNS caches"
        yield f"{container.where}.lifecycle.preStop.sleep.seconds", text
    shutdown = math.ceil(config.server.drain_s)
    grace = pod.spec.get("terminationGracePeriodSeconds", GRACE_S)
    needed = sleep + shutdown + ENGINE_MARGIN_S
    if grace < needed:
        text = f"{grace} s; an end takes up to {needed} s: preStop {sleep} + --shutdown-timeout {shutdown} + "
        yield f"{pod.path}.terminationGracePeriodSeconds", f"{text}{ENGINE_MARGIN_S} to spare"


def _environment(served: Served, pool: Pool, container: Container) -> Findings:
    variables, secrets = variables_of(container), secrets_of(container) | secrets_of(served.container)
    for key, value in environment().items():
        if variables.get(key) != value:
            yield f"{container.where}.env[{key}]", f"{variables.get(key)} must be {value}"
    key = variables.get("VLLM_API_KEY", "")
    if key != pool.api_key:
        # Where a key comes from; one that stands in a manifest is not repeated.
        own, other = (
            found if found in secrets else "a manifest" if found else "nowhere"
            for found in (key, pool.api_key)
        )
        text = f"comes from {own}, and the pool's api_key from {other}"
        yield f"{container.where}.env[VLLM_API_KEY]", text
