"""The `vllm serve` command line of each pool: what the configuration asks of its engines.

Every argument is one of vLLM 0.32 and 0.33; docs/engines.md says what each is for.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import shlex
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import yaml

from gateway.config import EMBEDDED, load
from gateway.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from gateway.config import Config, Pool

# The gateway fetches remote images itself. An empty list would allow every host; no URL can lead to a name
# under .invalid (RFC 2606).
_NO_HOST = "none.invalid"
# The least that vLLM puts into one step by itself, and what it puts there on a large GPU.
_LEAST_BATCH, _LARGE_BATCH = 2048, 8192
_WIDTH = 100


@dataclass(frozen=True)
class _Family:
    """What a model's own recipe for vLLM adds (docs.vllm.ai/projects/recipes).

    Attributes:
        name: of the model, as it stands in its path, in lower-case letters and digits.
        prefixes: are cached, as vLLM does by itself.
        batch: tokens in one step, at least.
        guard: a logits processor, which vLLM's first model runner refuses beside a speculative config.
        note: what an operator should know.
    """

    name: str
    prefixes: bool = False
    batch: int = 0
    guard: str = ""
    note: str = ""


_FAMILIES = (
    _Family(
        "paddleocrvl",
        batch=16384,
        note="PaddleX sends mm_processor_kwargs, which vLLM refuses without --trust-request-mm-kwargs. "
        "With it a request says how large its images are processed: only where all clients are trusted.",
    ),
    _Family("deepseekocr", guard="vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor"),
    _Family("hunyuanocr"),
    _Family("", prefixes=True),  # any other
)
_GLM_OCR = "glmocr"


def arguments(config: Config, pool: str, engine: str | None = None) -> list[str]:
    """Return what follows `vllm serve` for one of a pool's engines, its first unless another is named.

    A pool of nothing but the embedded engine has none: the list is empty.
    """
    return [word for option in _options(config, pool, engine) for word in option]


def environment() -> dict[str, str]:
    """Return the environment variables that belong to the arguments; keys are not among them."""
    return {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0"}


def command(config: Config, name: str) -> str:
    """Return the pool's command lines for a shell, with comments above; one for each address to listen on."""
    pool = config.pools[name]
    addresses: dict[tuple[str, int], list[str]] = {}
    for engine in pool.engines:
        if engine != EMBEDDED:
            addresses.setdefault(_address(engine), []).append(engine)
    blocks = [_comment(f"Pool {name}, {_what(pool)}: {', '.join(pool.engines)}")]
    if EMBEDDED in pool.engines:
        blocks.append(_comment("The embedded engine is started and stopped by `ocr-gateway serve`."))
    if addresses:
        blocks += map(_comment, _notes(config, pool))
    for engines in addresses.values():
        if len(addresses) > 1:
            blocks.append(_comment(", ".join(engines)))
        variables = [f"{key}={shlex.quote(value)}" for key, value in environment().items()]
        model, *options = map(shlex.join, _options(config, name, engines[0]))
        blocks.append(" \\\n    ".join([*variables, f"vllm serve {model}", *options]))
    return "\n".join(blocks)


def kustomize(config: Config, name: str, file: str) -> str:
    """Return the patch that gives deploy/kubernetes/engine a pool's arguments and their environment.

    Args:
        config: the configuration.
        name: of a pool with engines to start.
        file: the configuration's, for the comment that says where the patch comes from.
    """
    variables = [{"name": key, "value": value} for key, value in environment().items()]
    container = {"name": "vllm", "args": arguments(config, name), "env": variables}
    patch = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "vllm"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    note = f"`ocr-gateway engine-args --pool {name} --kustomize` wrote this from {file}: change that."
    return f"# {note}\n{yaml.safe_dump(patch, sort_keys=False, width=math.inf)}"


def run(options: argparse.Namespace) -> int:
    """Print the command lines, arguments or patch that the options ask for; return the exit status.

    Raises:
        ConfigError: there is no such pool, or not one pool with an engine to start, for a patch.
    """
    config = load(options.config, keys=False)
    if options.pool not in (None, *config.pools):
        there = ", ".join(config.pools)
        raise ConfigError([f"{options.config}: unknown pool {options.pool!r}; there are: {there}"])
    pools = [options.pool] if options.pool else list(config.pools)
    if options.kustomize:
        if len(pools) > 1:
            raise ConfigError([f"--kustomize is for one pool: --pool {' or '.join(pools)}"])
        (pool,) = pools
        if not arguments(config, pool):
            raise ConfigError([f"{options.config}: pool {pool} has no engine to start but the embedded one"])
        print(kustomize(config, pool, options.config.name), end="")
    elif options.json:
        print(json.dumps({pool: arguments(config, pool) for pool in pools}, indent=2))
    else:
        print("\n\n".join(command(config, pool) for pool in pools))
    return 0


def _options(config: Config, name: str, engine: str | None) -> Iterator[tuple[str, ...]]:
    """Yield the model, then each option with its values."""
    pool = config.pools[name]
    engine = engine or next((url for url in pool.engines if url != EMBEDDED), EMBEDDED)
    if engine == EMBEDDED:
        return
    host, port = _address(engine)
    yield (_model(config),)
    yield "--served-model-name", config.model
    yield "--host", host
    yield "--port", str(port)
    if pool.speculative_config:
        yield "--speculative-config", json.dumps(pool.speculative_config)
        yield "--per-request-spec-decode-metrics", "summary"  # refused by vLLM where nothing is drafted
    yield "--max-num-seqs", str(pool.max_load)
    yield "--max-num-queued-reqs", str(most_unfinished(pool.max_load, config.server.replicas))
    yield "--shutdown-timeout", str(math.ceil(config.server.drain_s))
    yield ("--enable-request-id-headers",)
    yield "--limit-mm-per-prompt", json.dumps({"image": config.limits.images_per_request, "video": 0})
    yield "--allowed-media-domains", _NO_HOST
    yield "--mm-processor-cache-gb", "0"
    family = _family(config)
    if not family.prefixes:
        yield ("--no-enable-prefix-caching",)
    if batch := max(_batch(pool), family.batch):
        yield "--max-num-batched-tokens", str(batch)
    if family.guard and not pool.speculative_config:
        yield "--logits-processors", family.guard


def most_unfinished(max_load: int, replicas: int) -> int:
    """Return the bound on an engine's requests, running and waiting: `max_load` and a share for each gateway.

    Of an engine that others have filled each gateway may still keep its share, ceil(max_load / replicas). The
    share of the one that has filled it leaves room for requests whose clients left a moment ago.
    """
    return max_load + replicas * math.ceil(max_load / replicas)


def _notes(config: Config, pool: Pool) -> Iterator[str]:
    if config.model_path is None:
        yield f"model_path is not set: {config.model} must be what vLLM can load."
    if pool.api_key:
        yield "Set VLLM_API_KEY in its environment to the pool's api_key, which is not printed here."
    if any("https://" in engine for engine in pool.engines):
        yield "https: add --ssl-keyfile and --ssl-certfile, or put a proxy in front that ends TLS."
    if pool.speculative_config.get("method") == "mtp" and _GLM_OCR in _letters(_model(config)):
        yield "GLM-OCR with MTP does not load in vLLM 0.26.0 to 0.27.1 and 0.29.0."
    if pool.ranges:
        yield (
            "Depth by batch size: with --data-parallel-size above 1 vLLM drops it, and says so only in its "
            "log. With MTP throughput has been reported to collapse at a threshold (vllm#49548): measure."
        )
    family = _family(config)
    if family.note:
        yield family.note
    if family.guard and pool.speculative_config:
        yield f"Left out, since vLLM may refuse it beside a speculative config: {family.guard}"


def _what(pool: Pool) -> str:
    """The depth, in words."""
    return f"depth by batch size, at most {pool.depth}" if pool.ranges else f"depth {pool.depth}"


def _model(config: Config) -> str:
    return config.model_path or config.model


def _family(config: Config) -> _Family:
    return next(family for family in _FAMILIES if family.name in _letters(_model(config)))


def _letters(model: str) -> str:
    return re.sub(r"[^a-z0-9]", "", model.lower())


def _batch(pool: Pool) -> int:
    """Tokens in one step, where vLLM's default may have no room for all requests and their drafts; else 0."""
    needed = pool.max_load * (pool.depth + 1)
    return max(needed, _LARGE_BATCH) if needed > _LEAST_BATCH else 0


def _address(engine: str) -> tuple[str, int]:
    """Where an engine listens: at its URL's own address, or everywhere where that is but a name for it."""
    url = urlsplit(engine.removeprefix("dns+"))
    host = url.hostname or ""
    if host != "localhost":
        try:
            ipaddress.ip_address(host)
        except ValueError:
            host = "0.0.0.0"  # noqa: S104 - a name may stand for any of the machine's addresses
    return host, url.port or {"http": 80, "https": 443}[url.scheme]


def _comment(text: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
