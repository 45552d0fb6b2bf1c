from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.serving import SHARED
from gateway.engines.vllm_page import FINISH_REASONS, EngineCounts, LatencyHistogram, metrics_page
from gateway.model import Speculation
from gateway.wire.vllm.engine import Simulated

CAPTURES = SHARED / "tiny-vllm/captures"


def samples(page: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_the_page_has_vllms_names_and_labels() -> None:
    counts = EngineCounts(
        running=2, waiting=3, prompt_tokens=40, generation_tokens=50, finished={"stop": 6, "abort": 1}
    )
    page = metrics_page(counts, "glm-ocr")
    assert samples(page) == {
        ("vllm:num_requests_running", ""): 2,
        ("vllm:num_requests_waiting", ""): 3,
        ("vllm:prompt_tokens_total", ""): 40,
        ("vllm:generation_tokens_total", ""): 50,
        **{
            ("vllm:request_success_total", reason): {"stop": 6, "abort": 1}.get(reason, 0)
            for reason in FINISH_REASONS
        },
    }
    assert 'vllm:num_requests_running{engine="0",model_name="glm-ocr"} 2.0\n' in page
    assert "spec_decode" not in page


def test_label_values_are_escaped() -> None:
    page = metrics_page(EngineCounts(), 'a"b\\c\nd', engine="1")
    (family, *_) = text_string_to_metric_families(page)
    assert family.samples[0].labels == {"engine": "1", "model_name": 'a"b\\c\nd'}


def test_every_position_of_the_depth_is_exported() -> None:
    page = metrics_page(EngineCounts(speculation=Speculation(0, 0, 0, (0, 0, 0))), "m")
    for position in range(3):
        assert (
            "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            f'{{engine="0",model_name="m",position="{position}"}} 0.0\n'
        ) in page


def test_a_histogram_is_cumulative_and_ends_at_infinity() -> None:
    histogram = LatencyHistogram("e2e_request_latency_seconds")
    histogram.observe(0.3)
    histogram.observe(3, times=2)
    histogram.observe(1e6)
    page = metrics_page(EngineCounts(latencies=[histogram]), "m")
    found = {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    name = "vllm:e2e_request_latency_seconds"
    buckets = [value for (sample, _), value in found.items() if sample == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert found[f"{name}_bucket", "0.3"] == 1
    assert found[f"{name}_bucket", "2.5"] == 1
    assert found[f"{name}_bucket", "5.0"] == 3
    assert found[f"{name}_bucket", "7680.0"] == 3
    assert found[f"{name}_bucket", "+Inf"] == found[f"{name}_count", ""] == 4
    assert found[f"{name}_sum", ""] == 0.3 + 6 + 1e6


@pytest.mark.parametrize("engine", ["mtp0", "mtp3"])
def test_the_writers_series_are_vllms(engine: str) -> None:
    if not CAPTURES.exists():
        pytest.skip("needs the recorded pages")
    kinds = re.compile(r"^# (?:TYPE|HELP) vllm:(\S+) (.+)$", re.MULTILINE)
    recorded = set(kinds.findall((CAPTURES / engine / "metrics_before.txt").read_text()))
    bounds = re.compile(r'vllm:(\w+)_bucket\{.*le="([^"]+)"')
    recorded_bounds = set(bounds.findall((CAPTURES / engine / "metrics_before.txt").read_text()))
    counts = EngineCounts(
        awake=True,
        kv_usage=0.5,
        speculation=None if engine == "mtp0" else Speculation(0, 0, 0, (0, 0, 0)),
        latencies=[
            LatencyHistogram(f"{name}_seconds")
            for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
        ],
    )
    page = metrics_page(counts, "tiny-ocr")
    assert set(kinds.findall(page)) <= recorded
    assert {(name, bound) for name, bound in recorded_bounds if f"vllm:{name}_bucket" in page} == set(
        bounds.findall(page)
    )


def test_a_simulated_engines_page_is_prometheus_own() -> None:
    page = metrics_page(EngineCounts(), "m", simulated=Simulated("h100-9b", 12.5, 10))
    families = {family.name: family for family in text_string_to_metric_families(page)}
    for name, value in (("simulated:clock_seconds", 12.5), ("simulated:time_scale", 10)):
        assert families[name].type == "gauge"
        assert [sample.value for sample in families[name].samples] == [value]
