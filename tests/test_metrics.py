from pathlib import Path
from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import parse
from gateway.fleet import Fleet
from gateway.metrics import Metrics
from gateway.model import Engine, Reading, Reason, SortDecision, Usage
from gateway.state import Lease, State

CONFIG = """
model: m
pools: {mtp3: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://e:1]}}
routes: {text: {}, table: {schedule: [[1, 63, 3]]}}
"""


@pytest.fixture
def state() -> State:
    fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
    return State(fleet, [Engine("e:1", "http://e:1", "mtp3", 3)], lambda: 10.0, Random(0))


def series(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page, content_type = metrics.page("text/plain")
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_gauges_show_the_state_at_the_moment_of_the_scrape(state: State) -> None:
    metrics = Metrics(state)
    state.mark("e:1", up=True)
    state.read("e:1", Reading(at=7.0, load=5, own=0, mismatch="another depth"))
    lease = state.take("table")
    assert isinstance(lease, Lease)
    state.wait("text", lambda: None, avoid="e:1")
    with lease:
        found = series(metrics)
    assert found["ocr_gateway_in_flight", (("route", "table"),)] == 1
    assert found["ocr_gateway_in_flight", (("route", "text"),)] == 0
    assert found["ocr_gateway_engine_up", (("engine", "e:1"), ("pool", "mtp3"))] == 1
    engine = (("engine", "e:1"), ("pool", "mtp3"))
    assert found["ocr_gateway_waiting", (("route", "text"),)] == 1
    assert found["ocr_gateway_oldest_wait_seconds", (("route", "text"),)] == 0
    assert found["ocr_gateway_engine_load", engine] == 6
    assert found["ocr_gateway_engine_breaker_state", engine] == 0
    assert found["ocr_gateway_engine_scrape_age_seconds", engine] == 3
    assert found["ocr_gateway_engine_config_mismatch", engine] == 1
    assert found["ocr_gateway_engine_tokens_per_second", engine] == 0
    assert found["ocr_gateway_pool_depth", (("pool", "mtp3"),)] == 3
    assert found["ocr_gateway_crossover_load", (("pool", "mtp3"), ("route", "table"))] == 256
    assert found["ocr_gateway_retry_budget_remaining", ()] == 100
    assert series(metrics)["ocr_gateway_in_flight", (("route", "table"),)] == 0


def test_what_happened_is_counted(state: State) -> None:
    metrics = Metrics(state)
    metrics.sorted(SortDecision("table", Reason.IMAGE, 0.9))
    metrics.took("sort", 0.003)
    metrics.finished(
        route="table", pool="mtp3", code=200, seconds=2.0, waited_s=0.5, first_token_s=0.2, usage=Usage(7, 40)
    )
    metrics.finished(route="", pool="", code=413, seconds=0.01, waited_s=None, first_token_s=None, usage=None)
    metrics.chosen("table", 3)
    metrics.shed("table", "queue_full")
    metrics.retried("table", "died")
    metrics.reloaded(valid=True)
    metrics.reloaded(valid=False)
    found = series(metrics)
    assert found["ocr_gateway_chosen_depth_total", (("depth", "3"), ("route", "table"))] == 1
    assert found["ocr_gateway_shed_total", (("reason", "queue_full"), ("route", "table"))] == 1
    assert found["ocr_gateway_retries_total", (("reason", "died"), ("route", "table"))] == 1
    assert found["ocr_gateway_config_reloads_total", ()] == 1
    assert found["ocr_gateway_config_reload_failures_total", ()] == 1
    route_pool = (("pool", "mtp3"), ("route", "table"))
    assert found["ocr_gateway_sort_decisions_total", (("reason", "image"), ("route", "table"))] == 1
    assert found["ocr_gateway_requests_total", (("code", "200"), *route_pool)] == 1
    assert found["ocr_gateway_requests_total", (("code", "413"), ("pool", ""), ("route", ""))] == 1
    assert found["ocr_gateway_request_duration_seconds_sum", route_pool] == 2.0
    assert found["ocr_gateway_time_to_first_token_seconds_count", route_pool] == 1
    assert found["ocr_gateway_queue_seconds_sum", route_pool] == 0.5
    assert found["ocr_gateway_prompt_tokens_total", route_pool] == 7
    assert found["ocr_gateway_completion_tokens_total", route_pool] == 40
    assert found["ocr_gateway_overhead_seconds_sum", (("stage", "sort"),)] == 0.003
    assert any(name == "ocr_gateway_build_info" for name, _ in found)


def test_scrapers_that_ask_for_openmetrics_get_it(state: State) -> None:
    page, content_type = Metrics(state).page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
