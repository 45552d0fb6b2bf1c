import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Metrics
from gateway.model import Engine, Reason, SortDecision, Usage
from gateway.state import State


@pytest.fixture
def state() -> State:
    return State([Engine("e:1", "http://e:1", "mtp3", 3)], ["text", "table"])


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
    with state.lease("table", state.snapshot().engines[0].engine):
        found = series(metrics)
    assert found["ocr_gateway_in_flight", (("route", "table"),)] == 1
    assert found["ocr_gateway_in_flight", (("route", "text"),)] == 0
    assert found["ocr_gateway_engine_up", (("engine", "e:1"), ("pool", "mtp3"))] == 1
    assert series(metrics)["ocr_gateway_in_flight", (("route", "table"),)] == 0


def test_what_happened_is_counted(state: State) -> None:
    metrics = Metrics(state)
    metrics.sorted(SortDecision("table", Reason.IMAGE, 0.9))
    metrics.took("sort", 0.003)
    metrics.finished(route="table", pool="mtp3", code=200, seconds=2.0, first_token_s=0.2, usage=Usage(7, 40))
    metrics.finished(route="", pool="", code=413, seconds=0.01, first_token_s=None, usage=None)
    found = series(metrics)
    route_pool = (("pool", "mtp3"), ("route", "table"))
    assert found["ocr_gateway_sort_decisions_total", (("reason", "image"), ("route", "table"))] == 1
    assert found["ocr_gateway_requests_total", (("code", "200"), *route_pool)] == 1
    assert found["ocr_gateway_requests_total", (("code", "413"), ("pool", ""), ("route", ""))] == 1
    assert found["ocr_gateway_request_duration_seconds_sum", route_pool] == 2.0
    assert found["ocr_gateway_time_to_first_token_seconds_count", route_pool] == 1
    assert found["ocr_gateway_prompt_tokens_total", route_pool] == 7
    assert found["ocr_gateway_completion_tokens_total", route_pool] == 40
    assert found["ocr_gateway_overhead_seconds_sum", (("stage", "sort"),)] == 0.003
    assert any(name == "ocr_gateway_build_info" for name, _ in found)


def test_scrapers_that_ask_for_openmetrics_get_it(state: State) -> None:
    page, content_type = Metrics(state).page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
