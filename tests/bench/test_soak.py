from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.faults import Tally
from bench.soak import SECRETS, Oddities, Patient, Vitals, bad_requests, leaks, trends, verdict
from bench.trend import slope

if TYPE_CHECKING:
    from pathlib import Path

CALM = Vitals(at=0, megabytes=100, descriptors=40, tasks=30, in_flight=0, bodies=0, answered=100, p99_s=1)


def patient(megabytes_in_ten_minutes: float, minutes: int = 30) -> Patient:
    found = Patient("http://unused")
    noise = np.random.default_rng(0).normal(0, 0.5, minutes * 6)
    found.samples = [
        replace(CALM, at=at, megabytes=100 + megabytes_in_ten_minutes * at / 600 + noise[number])
        for number, at in enumerate(range(0, minutes * 60, 10))
    ]
    return found


def judged(found: Patient, **after: int) -> list[str]:
    return verdict(found, Oddities(), CALM, replace(CALM, **after), [])


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
    assert judged(patient(0.0)) == []
    assert judged(patient(0.5)) == []
    assert "megabytes grow" in judged(patient(2.0))[0]


def test_what_a_run_needs_to_warm_up_is_no_trend() -> None:
    found = patient(0.0)
    found.samples[:30] = [
        replace(sample, megabytes=20 + number) for number, sample in enumerate(found.samples[:30])
    ]
    assert judged(found) == []
    assert trends(found.samples)[1] == 36


def test_descriptors_that_come_with_more_requests_are_no_trend_and_others_are() -> None:
    found = patient(0.0)
    found.samples = [
        replace(sample, in_flight=number // 2, descriptors=40 + 2 * (number // 2))
        for number, sample in enumerate(found.samples)
    ]
    assert judged(found) == []
    found.samples = [replace(sample, tasks=30 + number) for number, sample in enumerate(patient(0.0).samples)]
    assert "tasks grow" in judged(found)[0]


def test_what_stays_behind_is_told() -> None:
    told = judged(patient(0.0), in_flight=1, descriptors=90, tasks=99)
    assert told == [
        "1 requests and 0 bytes stay behind",
        "50 descriptors stay behind",
        "69 tasks stay behind",
    ]


def test_lost_requests_and_unexpected_answers_are_told() -> None:
    found = patient(0.0)
    found.total = Tally(silent=1)
    found.total.lost["503 queue_full"] = 2
    rogues = Oddities()
    rogues.note("no JSON", "HTTP 500", right=False)
    told = verdict(found, rogues, CALM, CALM, ["the key in the log"])
    assert told == [
        "good requests were lost: {'503 queue_full': 2}, 1 streams without an end",
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
