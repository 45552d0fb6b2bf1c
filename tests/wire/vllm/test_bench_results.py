from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import Speculation
from gateway.wire.vllm.bench_results import Latency, read

# What vLLM 0.32 wrote of 16 requests, two at a time, to an engine of depth 3; figures rounded.
RUN: dict[str, Any] = {
    "date": "20260729-232619",
    "endpoint_type": "openai-chat",
    "backend": "openai-chat",
    "label": None,
    "model_id": "tiny-ocr",
    "tokenizer_id": "/models/tiny-ocr",
    "num_prompts": 16,
    "route": "table",
    "pool": "mtp3",
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 2,
    "duration": 5.0,
    "completed": 16,
    "failed": 0,
    "total_input_tokens": 350,
    "total_output_tokens": 640,
    "request_throughput": 3.2,
    "request_goodput": None,
    "output_throughput": 128.0,
    "total_token_throughput": 198.0,
    "latencies": [0.726, 0.668],
    "queue_times": [0.0006, 0.0012],
    "max_output_tokens_per_s": 63.0,
    "max_concurrent_requests": 6,
    "rtfx": 0.0,
    "spec_decode_acceptance_rate": 55.56,
    "spec_decode_acceptance_length": 2.67,
    "spec_decode_num_drafts": 240,
    "spec_decode_draft_tokens": 720,
    "spec_decode_accepted_tokens": 400,
    "spec_decode_per_position_acceptance_rates": [0.8, 0.5333333333333333, 0.3333333333333333],
    "mean_ttft_ms": 90.0,
    "median_ttft_ms": 74.0,
    "std_ttft_ms": 39.2,
    "p95_ttft_ms": 174.0,
    "p99_ttft_ms": 203.0,
    "mean_tpot_ms": 13.0,
    "median_tpot_ms": 13.5,
    "std_tpot_ms": 2.2,
    "p95_tpot_ms": 15.4,
    "p99_tpot_ms": 16.0,
}
# What an older version does not write.
NEWER = ("failed", "route", "pool", "latencies", "queue_times", "rtfx")


def file(without: tuple[str, ...] = (), **changed: Any) -> bytes:
    run = {key: value for key, value in RUN.items() if key not in without}
    return json.dumps(run | changed).encode()


def test_a_run_is_read_in_seconds_and_rates() -> None:
    (run,) = read(file())
    assert (run.route, run.pool, run.model) == ("table", "mtp3", "tiny-ocr")
    assert (run.load, run.per_s, run.seconds) == (2, 0, 5)
    assert (run.requests, run.failed, run.requests_per_s) == (16, 0, 3.2)
    assert (run.rate, run.prompt_rate) == (128, 70)
    assert run.first_token_s == Latency(0.09, 0.074, 0.174, 0.203)
    assert run.token_s == Latency(0.013, 0.0135, 0.0154, 0.016)


def test_a_run_is_dated_at_its_end_and_told_from_its_start() -> None:
    (run,) = read(file())
    assert run.started == "2026-07-29T23:26:14"


def test_times_it_does_not_tell_in_full_are_not_told() -> None:
    """By default vLLM writes the 99th percentile alone, and zeros where nothing was answered."""
    (run,) = read(file(("p95_ttft_ms",), mean_tpot_ms=0.0, median_tpot_ms=0.0))
    assert run.first_token_s is run.token_s is run.request_s is None


def test_acceptance_comes_in_counts() -> None:
    (run,) = read(file())
    assert run.speculation == Speculation(240, 400, 720, (192, 128, 80))


def test_acceptance_that_does_not_add_up_is_none() -> None:
    (run,) = read(file(spec_decode_accepted_tokens=721))
    assert run.speculation is None


def test_an_engine_that_does_not_speculate_has_no_acceptance() -> None:
    speculative = tuple(key for key in RUN if key.startswith("spec_decode"))
    (run,) = read(file(speculative))
    assert run.speculation is None


@pytest.mark.parametrize("completed", [16, 13])
def test_older_files_do_not_count_failures_so_prompts_without_an_answer_are(completed: int) -> None:
    (run,) = read(file(NEWER, completed=completed))
    assert (run.failed, run.route) == (16 - completed, "")


@pytest.mark.parametrize("most", [None, 8])
def test_requests_at_a_rate_are_an_open_loop(most: int | None) -> None:
    (run,) = read(file(request_rate=4.0, max_concurrency=most))
    assert (run.per_s, run.load) == (4, most or 16)


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_appended_runs_are_read_one_by_one(end: str) -> None:
    runs = read(file() + b"\n" + file(max_concurrency=4) + end.encode())
    assert [run.load for run in runs] == [2, 4]


def test_a_file_that_was_laid_out_for_people_is_read() -> None:
    assert read(json.dumps(RUN, indent=2).encode()) == read(file())


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"", "not JSON"),
        (b"no such thing", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "Expected `object`"),
        (b"{}", "`date`"),
        (file(("duration",)), "`duration`"),
        (file(("output_throughput",)), "`output_throughput`"),
        (file(duration=0), "duration"),
        (file(duration=-1.5), "duration"),
        (file(duration=float("nan")), "duration"),
        (file(duration=[1.0]), "duration"),
        (file(output_throughput=float("inf")), "output_throughput"),
        (file(output_throughput="128"), "output_throughput"),
        (file(completed=-1), "completed"),
        (file(completed=True), "completed"),
        (file(mean_ttft_ms=-1), "mean_ttft_ms"),
        (file(spec_decode_per_position_acceptance_rates=[0.8, None]), "per_position"),
        (file(max_concurrency=0), "max_concurrency"),
        (file(max_concurrency=None), "max_concurrency"),
        (file(request_rate=0), "request_rate"),
        (file(request_rate=float("nan")), "request_rate"),
        (file(request_rate="fast"), "request_rate"),
        (file(ramp_up_strategy="linear"), "ramp_up_strategy"),
        (file(date="yesterday"), "date"),
        (file(date="00010101-000000"), "date"),
        (file(route=3), "route"),
        (file() + b"\n" + file(("duration",)), "run 2 of the file: .*`duration`"),
        (file() + b"\n{", "run 2 of the file"),
        (file() + b"\n" + b"[" * 100_000, "run 2 of the file|nested too deeply"),
    ],
)
def test_what_is_no_such_file_is_refused_by_name(raw: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(RUN)), json_values)
def test_whatever_a_key_holds_it_is_read_or_refused(key: str, value: Any) -> None:
    with contextlib.suppress(ValueError):
        (run,) = read(file(**{key: value}))
        assert run.load >= 1
        assert 0 < run.seconds < float("inf")
        assert 0 <= run.rate < float("inf")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        read(raw)
