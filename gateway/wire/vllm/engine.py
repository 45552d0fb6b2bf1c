"""vLLM's own formats: the metrics page, per-request speculation and the error body."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from gateway.model import Speculation, SpeculationFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import ToldSpeculation

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
# More positions than any engine drafts, and a bound to the series that one can cause.
_MAX_POSITIONS = 128
# More than a page or an answer of the largest engine has; reading on would only cost time.
_MAX_SAMPLES = 10_000
_MAX_RANKS = 256
_MAX_METRICS_BYTES = 64 * 1024
_MAX_VERSION_CHARS = 100
_MAX_NAME_CHARS = 200
_MAX_MODELS = 100
_MAX_DIGITS = 40
# The most that a counter or a gauge of requests can be believed to be.
_MOST = 2.0**53
_MOST_REQUESTS = 1e6
# What 0.32 answers with a 500, at once, to whatever it is sent after SIGTERM, while it drains and is healthy:
# the executor that prepares requests is the first thing it shuts down. The words are Python's.
STOPPING = "cannot schedule new futures after shutdown"
# It starts with literal bytes, which the search finds many times faster than a line's start.
_SAMPLE = re.compile(
    rb"\nvllm:(num_requests_running|num_requests_waiting|engine_sleep_state|prompt_tokens_total"
    rb"|generation_tokens_total|request_success_total|spec_decode_num_drafts_total"
    rb"|spec_decode_num_draft_tokens_total|spec_decode_num_accepted_tokens_total"
    rb"|spec_decode_num_accepted_tokens_per_pos_total)(?:\{([^\n]*)\})?[ \t]+([^\s]+)"
)
# What a sweep wants besides: counters are summed over ranks, of a share the highest counts.
_MORE = re.compile(
    rb"\nvllm:(num_preemptions_total|kv_cache_usage_perc|prefix_cache_(?:hits|queries)_total"
    rb"|time_to_first_token_seconds_count|inter_token_latency_seconds_(?:count|sum))"
    rb"(?:\{[^\n]*\})?[ \t]+([^\s]+)"
)
# How the page of a simulated engine begins.
SIMULATED_MARK = "# simulated engine, fit "
_SIMULATED = re.compile(
    re.escape(SIMULATED_MARK.encode()) + rb"([^\n]*)\n"
    rb"(?:.*\nsimulated:clock_seconds ([^\s]+)\n.*\nsimulated:time_scale ([^\s]+)\n)?",
    re.DOTALL,
)
_POSITION = re.compile(rb'(?:^|,)position="(\d{1,9})"')
_RANK = re.compile(rb'(?:^|,)engine="(\d{1,9})"')
_AWAKE = re.compile(rb'(?:^|,)sleep_state="awake"')


class _Speculative(msgspec.Struct):
    acceptance_histogram: list[_Count]
    num_spec_steps: _Count
    num_accepted_draft_tokens: _Count
    num_draft_tokens: _Count


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculative | None = None


class _AnyMetrics(msgspec.Struct):
    speculative_decoding: dict[str, Any] | None = None


class _Version(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_VERSION = msgspec.json.Decoder(_Version)
_MODELS = msgspec.json.Decoder(_Models)
_METRICS = msgspec.json.Decoder(_Metrics)
_ANY_METRICS = msgspec.json.Decoder(_AnyMetrics)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What an engine's metrics page says, summed over its data-parallel ranks.

    Attributes:
        running: requests being worked on.
        waiting: requests taken in and not begun.
        awake: no rank sleeps; also where the page does not tell.
        generation_tokens: tokens written since the engine started.
        prompt_tokens: prompt tokens read since then.
        finished: requests finished since then, for whatever reason.
        speculation: by rank, what it has drafted since it started, with as many positions as its depth; empty
            where it was started without a speculative config.
        simulated: it says of itself that it is simulated.
    """

    running: int
    waiting: int
    awake: bool
    generation_tokens: float
    prompt_tokens: float
    finished: float
    speculation: Mapping[str, Speculation] = field(default_factory=dict)
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulated engine's metrics page says of the simulation.

    Attributes:
        fit: what is simulated.
        clock_s: seconds its clock has run, while it had nothing to do, too. It stands still while the machine
            is late, and while the engine is paused.
        time_scale: seconds of its clock in a real one, where the machine is not late.
    """

    fit: str
    clock_s: float
    time_scale: float


@dataclass(frozen=True, slots=True)
class EngineWork:
    """All that a measurement reads off an engine's metrics page, summed over its data-parallel ranks.

    Counters count from the engine's start; what the page does not tell is None.

    Attributes:
        reading: what the gateway reads, too.
        preemptions: requests put back for want of memory.
        kv_usage: share of the KV cache in use, 0 to 1; of the fullest rank.
        cache_hits, cache_queries: prompt tokens found in the prefix cache, and looked up there.
        first_tokens: first tokens written, one an answer.
        steps: outputs after the first. vLLM counts one for each request and step, however many tokens it
            brought, so with speculation these are verifications.
        steps_s: real seconds from each of these outputs to the one before it, in all.
        simulated: None of a real engine.
    """

    reading: EngineReading
    preemptions: float | None = None
    kv_usage: float | None = None
    cache_hits: float | None = None
    cache_queries: float | None = None
    first_tokens: float | None = None
    steps: float | None = None
    steps_s: float | None = None
    simulated: Simulated | None = None


def read_metrics(page: bytes) -> EngineReading:
    """Read an engine's GET /metrics page; series that are not needed are passed over.

    Raises:
        ValueError: not a vLLM's page: the gauges of its load are missing, a value is no number or none that
            could be, or it is longer than any engine's.
    """
    sums: dict[bytes, float] = {}
    drafted: dict[str, dict[bytes, float]] = {}
    positions: dict[str, dict[int, float]] = {}
    awake = True
    for number, found in enumerate(_SAMPLE.finditer(b"\n" + page)):
        name, labels, text = found.groups(b"")
        if len(text) > _MAX_DIGITS or not 0 <= (value := float(text)) <= _MOST:
            raise ValueError(f"vllm:{name.decode()} is {text[:_MAX_DIGITS]!r}")
        if number == _MAX_SAMPLES or len(drafted) > _MAX_RANKS:
            raise ValueError("a metrics page longer than any engine's")
        if name == b"engine_sleep_state":
            awake = awake and (value != 0 or not _AWAKE.search(labels))
        elif name == b"spec_decode_num_accepted_tokens_per_pos_total":
            _add(positions.setdefault(_rank(labels), {}), _position(labels), value)
        elif name.startswith(b"spec_decode"):
            _add(drafted.setdefault(_rank(labels), {}), name, value)
        else:
            _add(sums, name, value)
    try:
        running, waiting = sums[b"num_requests_running"], sums[b"num_requests_waiting"]
    except KeyError as error:
        raise ValueError(f"not a vLLM metrics page: vllm:{error.args[0].decode()} is missing") from error
    if running + waiting > _MOST_REQUESTS:
        raise ValueError(f"no engine has {running + waiting:g} requests")
    return EngineReading(
        running=int(running),
        waiting=int(waiting),
        awake=awake,
        generation_tokens=sums.get(b"generation_tokens_total", 0.0),
        prompt_tokens=sums.get(b"prompt_tokens_total", 0.0),
        finished=sums.get(b"request_success_total", 0.0),
        speculation={rank: _speculation(counts, positions.get(rank, {})) for rank, counts in drafted.items()},
        simulated=page.startswith(SIMULATED_MARK.encode()),
    )


def read_work(page: bytes) -> EngineWork:
    """Read an engine's GET /metrics page for a measurement; `read_metrics` is for what is read all the time.

    Raises:
        ValueError: as `read_metrics`; or a simulated engine that does not tell its clock.
    """
    found: dict[bytes, list[float]] = {}
    for name, value in _MORE.findall(b"\n" + page):
        found.setdefault(name, []).append(_finite(value))
    sums = {name: sum(values) for name, values in found.items()}
    return EngineWork(
        reading=read_metrics(page),
        preemptions=sums.get(b"num_preemptions_total"),
        kv_usage=max(found.get(b"kv_cache_usage_perc", ()), default=None),
        cache_hits=sums.get(b"prefix_cache_hits_total"),
        cache_queries=sums.get(b"prefix_cache_queries_total"),
        first_tokens=sums.get(b"time_to_first_token_seconds_count"),
        steps=sums.get(b"inter_token_latency_seconds_count"),
        steps_s=sums.get(b"inter_token_latency_seconds_sum"),
        simulated=_simulated(page),
    )


def read_version(page: bytes) -> str:
    """Read an engine's GET /version page.

    Raises:
        ValueError: it tells none.
    """
    try:
        version = _VERSION.decode(page).version[:_MAX_VERSION_CHARS]
        return "".join(filter(str.isprintable, version))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a vLLM version page: {error}") from error


def read_models(page: bytes) -> tuple[str, ...]:
    """Return the names that an engine's GET /v1/models page lists, at most 100.

    Raises:
        ValueError: it lists none.
    """
    try:
        names = tuple(model.id[:_MAX_NAME_CHARS] for model in _MODELS.decode(page).data[:_MAX_MODELS])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"not a page of models: {error}") from error
    if not names:
        raise ValueError("it lists no model")
    return names


def read_speculation(raw: bytes) -> ToldSpeculation:
    """Read an answer's `metrics` member (vLLM's --per-request-spec-decode-metrics).

    Returns:
        The figures; why there are none, where they are not understood or do not add up; None where the
        answer tells nothing of its speculation.
    """
    if len(memoryview(raw)) > _MAX_METRICS_BYTES:
        return None
    try:
        told = _METRICS.decode(raw).speculative_decoding
    except _UNREADABLE:
        return SpeculationFault.FORMAT if _tells_speculation(raw) else None
    if told is None:
        return None
    if not 1 < len(told.acceptance_histogram) <= _MAX_POSITIONS:
        return SpeculationFault.FORMAT
    # The histogram counts drafts by accepted tokens; those with more than i had the one at position i.
    *positions, drafts = itertools.accumulate(reversed(told.acceptance_histogram))
    positions.reverse()
    accepted = sum(positions)
    if (drafts, accepted) != (told.num_spec_steps, told.num_accepted_draft_tokens):
        return SpeculationFault.HISTOGRAM_SUMS
    if accepted > told.num_draft_tokens:
        return SpeculationFault.ACCEPTED_OVER_DRAFTED
    if told.num_draft_tokens > drafts * len(positions):
        return SpeculationFault.DRAFTED_OVER_POSITIONS
    return Speculation(drafts, accepted, told.num_draft_tokens, tuple(positions))


def is_stopping(message: str) -> bool:
    """Whether an error says that the engine is on its way out: it ends what it has, and takes nothing new.

    It says nothing else then; an error that quotes a request says more.
    """
    return message == STOPPING


def _tells_speculation(raw: bytes) -> bool:
    try:
        return _ANY_METRICS.decode(raw).speculative_decoding is not None
    except _UNREADABLE:
        return False


def _finite(text: bytes) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"a value of vLLM's metrics page is {value}")
    return value


def _simulated(page: bytes) -> Simulated | None:
    found = _SIMULATED.match(page)
    if found is None:
        return None
    fit, clock_s, scale = found.groups()
    if clock_s is None:
        raise ValueError("a simulated engine of another version: its vLLM metrics do not tell its clock")
    return Simulated(fit.decode("utf-8", "replace"), _finite(clock_s), _finite(scale))


def _position(labels: bytes) -> int:
    found = _POSITION.search(labels)
    if found is None or int(found[1]) >= _MAX_POSITIONS:
        raise ValueError("an accepted token's draft position is missing or absurd")
    return int(found[1])


_Key = TypeVar("_Key")


def _add(sums: dict[_Key, float], key: _Key, value: float) -> None:
    sums[key] = sums.get(key, 0.0) + value


def _rank(labels: bytes) -> str:
    found = _RANK.search(labels)
    return found[1].decode() if found else ""


def _speculation(counts: Mapping[bytes, float], positions: Mapping[int, float]) -> Speculation:
    drafts, draft_tokens, accepted = (
        counts.get(b"spec_decode_num_%s_total" % name, 0.0)
        for name in (b"drafts", b"draft_tokens", b"accepted_tokens")
    )
    by_position = tuple(positions.get(position, 0.0) for position in range(max(positions, default=-1) + 1))
    return Speculation(drafts, accepted, draft_tokens, by_position)
