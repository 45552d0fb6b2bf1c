"""The result files of `vllm bench serve` (its --save-result and --append-result)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import msgspec

from gateway.model import Speculation

if TYPE_CHECKING:
    from collections.abc import Mapping

# Far above any engine's; what lies beyond is no figure, infinity included.
_MOST = 1e12
_Amount = Annotated[float, msgspec.Meta(ge=0, le=_MOST)]
_Above0 = Annotated[float, msgspec.Meta(gt=0, le=_MOST)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


@dataclass(frozen=True, slots=True)
class Latency:
    """How a time is distributed over a run's requests, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One run, as its client counted it.

    Attributes:
        started: ISO 8601, to the second, by the clock of its machine, whose time zone is not told.
        model: as the engine was asked for it.
        route, pool, engine: as the run's metadata has them (`--metadata route=table pool=mtp3`); else empty.
        load: requests at a time; where requests were sent at a rate without such a limit, all of them.
        per_s: requests sent a second; 0 where the next was sent as soon as one was answered.
        seconds: the run's length, from the first request to the last answer.
        requests: that were answered.
        failed: that were not.
        requests_per_s: answered requests a second.
        rate: output tokens a second.
        prompt_rate: prompt tokens a second.
        first_token_s, token_s, request_s: to the first token; an output token after it; to the end. None
            where the file lacks one of mean, median, 95th and 99th percentile
            (`--percentile-metrics ttft,tpot,e2el --metric-percentiles 95,99` writes them).
        speculation: by the engine's counters; None where the file has none, or they do not add up.
    """

    started: str
    model: str
    route: str
    pool: str
    engine: str
    load: int
    per_s: float
    seconds: float
    requests: int
    failed: int
    requests_per_s: float
    rate: float
    prompt_rate: float
    first_token_s: Latency | None
    token_s: Latency | None
    request_s: Latency | None
    speculation: Speculation | None


class _File(msgspec.Struct):
    date: str
    model_id: str
    num_prompts: _Count
    duration: _Above0
    completed: _Count
    total_input_tokens: _Count
    request_throughput: _Amount
    output_throughput: _Amount
    max_concurrency: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    request_rate: float | str = "inf"
    ramp_up_strategy: str | None = None
    failed: _Count | None = None  # older versions do not count them
    route: str = ""
    pool: str = ""
    engine: str = ""
    spec_decode_num_drafts: _Count = 0
    spec_decode_draft_tokens: _Count = 0
    spec_decode_accepted_tokens: _Count = 0
    spec_decode_per_position_acceptance_rates: list[_Amount] = []


class _Latencies(msgspec.Struct):
    """In milliseconds; every key may be missing."""

    mean_ttft_ms: _Amount | None = None
    median_ttft_ms: _Amount | None = None
    p95_ttft_ms: _Amount | None = None
    p99_ttft_ms: _Amount | None = None
    mean_tpot_ms: _Amount | None = None
    median_tpot_ms: _Amount | None = None
    p95_tpot_ms: _Amount | None = None
    p99_tpot_ms: _Amount | None = None
    mean_e2el_ms: _Amount | None = None
    median_e2el_ms: _Amount | None = None
    p95_e2el_ms: _Amount | None = None
    p99_e2el_ms: _Amount | None = None


def read(raw: bytes) -> tuple[Benchmark, ...]:
    """Read a file: one run, or one a line where they were appended.

    Raises:
        ValueError: it is no such file, or a figure is missing or absurd; says which key.
    """
    try:
        return (_benchmark(json.loads(raw)),)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        lines = [line for line in raw.splitlines() if line.strip()]
        if len(lines) < 2:
            raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("not JSON of `vllm bench serve`: nested too deeply") from error
    return tuple(_line(number, line) for number, line in enumerate(lines, 1))


def _line(number: int, line: bytes) -> Benchmark:
    try:
        return _benchmark(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"run {number} of the file: {error}") from error


def _benchmark(values: object) -> Benchmark:
    try:
        found = msgspec.convert(values, _File)
        latencies = msgspec.convert(values, _Latencies)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a result of `vllm bench serve`: {error}") from error
    if found.ramp_up_strategy:
        raise ValueError("ramp_up_strategy: a run whose request rate changes measures no load")
    per_s = _per_s(found.request_rate)
    if found.max_concurrency is None and not per_s:
        raise ValueError("max_concurrency: the run had none, so it was at no load; repeat it with one")
    failed = max(found.num_prompts - found.completed, 0) if found.failed is None else found.failed
    milliseconds = msgspec.structs.asdict(latencies)
    return Benchmark(
        started=_started(found.date, found.duration),
        model=found.model_id,
        route=found.route,
        pool=found.pool,
        engine=found.engine,
        load=found.max_concurrency or found.num_prompts,
        per_s=per_s,
        seconds=found.duration,
        requests=found.completed,
        failed=failed,
        requests_per_s=found.request_throughput,
        rate=found.output_throughput,
        prompt_rate=found.total_input_tokens / found.duration,
        first_token_s=_latency(milliseconds, "ttft"),
        token_s=_latency(milliseconds, "tpot"),
        request_s=_latency(milliseconds, "e2el"),
        speculation=_speculation(found),
    )


def _per_s(rate: float | str) -> float:
    if rate in ("inf", math.inf):
        return 0.0
    if not isinstance(rate, str) and 0 < rate <= _MOST:
        return rate
    raise ValueError(f'request_rate: must be above 0, or "inf", found {rate!r}')


def _started(date: str, seconds: float) -> str:
    """The file is dated when the run has ended."""
    try:
        ended = datetime.strptime(date, "%Y%m%d-%H%M%S")
        return (ended - timedelta(seconds=seconds)).isoformat(timespec="seconds")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"date: must be as in 20260131-235959, found {date!r}") from error


def _latency(milliseconds: Mapping[str, float | None], of: str) -> Latency | None:
    found = [milliseconds[f"{figure}_{of}_ms"] for figure in ("mean", "median", "p95", "p99")]
    known = [value / 1000 for value in found if value]  # 0 where there was nothing to time
    return Latency(*known) if len(known) == len(found) else None


def _speculation(found: _File) -> Speculation | None:
    drafts = found.spec_decode_num_drafts
    if not drafts:
        return None
    # The file has each position's share of the drafts; counts are whole.
    positions = tuple(
        float(round(share * drafts)) for share in found.spec_decode_per_position_acceptance_rates
    )
    told = Speculation(drafts, found.spec_decode_accepted_tokens, found.spec_decode_draft_tokens, positions)
    return told if told.adds_up else None
