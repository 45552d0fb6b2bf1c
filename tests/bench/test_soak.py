from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.bad_clients import SECRETS, BadTally, bad_requests
from bench.clients import Tally
from bench.soak import Observed, Vitals, leaks, trends, verdict
from bench.trend import slope

if TYPE_CHECKING:
    from pathlib import Path

CALM = Vitals(at=0, megabytes=100, descriptors=40, tasks=30, in_flight=0, bodies=0, answered=100, p99_s=1)


def observed(megabytes_in_ten_minutes: float, minutes: int = 30) -> Observed:
    found = Observed("http://unused")
    noise = np.random.default_rng(0).normal(0, 0.5, minutes * 6)
    found.samples = [
        replace(CALM, at=at, megabytes=100 + megabytes_in_ten_minutes * at / 600 + noise[number])
        for number, at in enumerate(range(0, minutes * 60, 10))
    ]
    return found


def judged(found: Observed, **after: int) -> list[str]:
    return verdict(found, BadTally(), CALM, replace(CALM, **after), [])


@pytest.mark.parametrize("growth", [-3.0, 0.0, 0.3, 2.5, 40.0])
def test_a_slope_is_found_through_noise_and_outliers(growth: float) -> None:
    times = np.arange(120.0)
    values = growth * times + np.random.default_rng(1).normal(0, 1, 120)
    values[::17] += 5000
    found = slope(list(times), list(values))
    assert found.low <= growth <= found.high
    assert found.median == pytest.approx(growth, abs=0.1)


def test_one_measurement_has_no_slope() -> None:
    with pytest.raises(ValueError, match="no slope"):
        slope([1.0], [2.0])


def test_a_leak_is_a_trend_and_noise_is_none() -> None:
    assert judged(observed(0.0)) == []
    assert judged(observed(0.5)) == []
    assert "megabytes grow" in judged(observed(2.0))[0]


def test_what_a_run_needs_to_warm_up_is_no_trend() -> None:
    found = observed(0.0)
    found.samples[:30] = [
        replace(sample, megabytes=20 + number) for number, sample in enumerate(found.samples[:30])
    ]
    assert judged(found) == []
    assert trends(found.samples)[1] == 36


def test_descriptors_that_come_with_more_requests_are_no_trend_and_others_are() -> None:
    found = observed(0.0)
    found.samples = [
        replace(sample, in_flight=number // 2, descriptors=40 + 2 * (number // 2))
        for number, sample in enumerate(found.samples)
    ]
    assert judged(found) == []
    found.samples = [
        replace(sample, tasks=30 + number) for number, sample in enumerate(observed(0.0).samples)
    ]
    assert "tasks grow" in judged(found)[0]


def test_what_is_left_is_reported() -> None:
    problems = judged(observed(0.0), in_flight=1, descriptors=90, tasks=99)
    assert problems == [
        "1 requests and 0 bytes are left",
        "50 descriptors are left",
        "69 tasks are left",
    ]


def test_failed_requests_and_unexpected_answers_are_reported() -> None:
    found = observed(0.0)
    found.total = Tally(cut=1)
    found.total.failed["503 queue_full"] = 2
    bad = BadTally()
    bad.count("no JSON", "HTTP 500", expected=False)
    problems = verdict(found, bad, CALM, CALM, ["the key in the log"])
    assert problems == [
        "good requests failed: {'503 queue_full': 2}, 1 streams without an end",
        "unexpected answers: {'no JSON: HTTP 500': 1}",
        "a secret shows: the key in the log",
    ]


def test_a_secret_is_found_in_a_log_plain_and_in_base64(tmp_path: Path) -> None:
    log = tmp_path / "log"
    bodies = [body for body, _, _ in bad_requests().values()]
    log.write_bytes(b"\n".join([*bodies, SECRETS["engine key"].encode(), b"nothing"]))
    found = leaks({"/status": json.dumps(SECRETS)}, log)
    assert {f"the {what} on /status" for what in SECRETS} <= set(found)
    assert {"the document in the log", "the prompt in the log", "the engine key in the log"} <= set(found)
    log.write_text("nothing")
    assert leaks({"/metrics": ""}, log) == []
