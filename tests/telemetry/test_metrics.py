import asyncio
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

import gateway
from gateway.config import parse
from gateway.model import Engine, Reading, Speculation, SpeculationFault, Usage
from gateway.policy.account.acceptance import Sample, Source
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.ledger import AnswerKind
from gateway.state.store import State
from gateway.telemetry.metrics import Metrics, _Counter, _Histogram
from tests.telemetry.records import record

CONFIG = """
model: m
pools: {mtp3: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://e:1]}}
routes: {text: {}, table: {schedule: [[1, 63, 3]]}}
"""


@pytest.fixture
def state() -> State:
    fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
    return State(fleet, [Engine("e:1", "http://e:1", "mtp3", 3)], lambda: 10.0, Random(0))


async def series(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page, content_type = await metrics.page("text/plain")
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


async def test_the_process_tells_its_memory_its_open_files_and_its_tasks(state: State) -> None:
    found = await series(Metrics(state))
    assert found["ocr_gateway_tasks", ()] >= 1
    assert found["process_resident_memory_bytes", ()] > 1e6
    assert 0 < found["process_open_fds", ()] < found["process_max_fds", ()]


async def test_what_requests_hold_is_shown_beside_what_they_may(state: State) -> None:
    state.memory.claim("a").add(1234)
    found = await series(Metrics(state))
    assert found["ocr_gateway_inflight_bytes", ()] == 1234
    assert found["ocr_gateway_inflight_bytes_limit", ()] == state.memory.limit


async def test_an_engine_cannot_make_series_of_its_own(state: State) -> None:
    metrics = Metrics(state)
    for code in (200, 429, 499, *range(430, 500)):
        metrics.finished(record(route="text", pool="mtp3", code=code))
    found = await series(metrics)
    codes = {dict(labels)["code"] for name, labels in found if name == "ocr_gateway_requests_total"}
    assert codes == {"200", "429", "431", "451", "499", "4xx"}


async def test_gauges_show_the_state_at_the_moment_of_the_scrape(state: State) -> None:
    metrics = Metrics(state)
    state.mark("e:1", up=True)
    state.record_reading("e:1", Reading(at=7.0, load=5, own=0, mismatch="another depth"))
    lease = state.take("table")
    assert isinstance(lease, Lease)
    state.wait("text", lambda: None, avoid="e:1")
    with lease:
        found = await series(metrics)
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
    assert ("ocr_gateway_crossover_load", (("pool", "mtp3"), ("route", "table"))) not in found
    assert found["ocr_gateway_engine_in_flight", (*engine, ("route", "table"))] == 1
    assert found["ocr_gateway_engine_in_flight", (*engine, ("route", "text"))] == 0
    assert found["ocr_gateway_engine_depth", engine] == 3
    assert found["ocr_gateway_retry_budget_remaining", ()] == 100
    assert found["ocr_gateway_queue_limit_seconds", (("route", "text"),)] == 30
    assert found["ocr_gateway_build_info", (("model", "m"), ("version", gateway.__version__))] == 1
    assert (await series(metrics))["ocr_gateway_in_flight", (("route", "table"),)] == 0


async def test_a_crossover_is_shown_where_there_is_one(state: State) -> None:
    text = """
model: m
pools:
  mtp3: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://e:1]}
  plain: {engines: [http://p:1]}
routes:
  text: {schedule: [[1, 4096, 3]], pools: [mtp3]}
  table: {schedule: [[1, 63, 3], [64, 4096, 0]]}
"""
    metrics = Metrics(state)
    state.configure(Fleet.of(parse(text, "routes.yaml", Path(), {})), state.engines())
    found = await series(metrics)
    crossovers = {labels: value for (name, labels), value in found.items() if name.endswith("crossover_load")}
    assert crossovers == {(("pool", "mtp3"), ("route", "table")): 64}


async def test_what_engines_are_good_for_is_shown_and_how_much_of_it_they_do(state: State) -> None:
    text = """
model: m
pools:
  mtp3: {speculative_config: {method: mtp, num_speculative_tokens: 3}, engines: [http://e:1]}
  plain: {engines: [http://p:1], max_load: 200}
routes:
  text: {pools: [mtp3]}
  table: {schedule: [[1, 63, 3], [64, 4096, 0]]}
"""
    metrics = Metrics(state)
    state.configure(Fleet.of(parse(text, "routes.yaml", Path(), {})), state.engines())
    found = await series(metrics)
    useful = {labels: value for (name, labels), value in found.items() if name.endswith("useful_load")}
    assert useful == {
        (("pool", "mtp3"), ("route", "text")): 256,
        (("pool", "mtp3"), ("route", "table")): 64,
        (("pool", "plain"), ("route", "table")): 200,
    }
    busy = "ocr_gateway_engine_busy_ratio", (("engine", "e:1"), ("pool", "mtp3"))
    assert (await series(metrics))[busy] == 0
    state.mark("e:1", up=True)
    state.record_reading("e:1", Reading(at=7.0, load=64, own=0))
    assert (await series(metrics))[busy] == pytest.approx(64 * 1.1 / (64 + 0.1 * 2 / (1 / 256 + 1 / 64)))
    state.record_reading("e:1", Reading(at=7.0, load=63, own=0))
    with state.take("table") as lease:  # type: ignore[union-attr]
        assert lease.engine.name == "e:1"
        assert (await series(metrics))[busy] == 1


async def test_an_engine_of_a_pool_that_has_gone_is_shown_until_its_work_is_done(state: State) -> None:
    metrics = Metrics(state)
    state.mark("e:1", up=True)
    lease = state.take("table")
    assert isinstance(lease, Lease)
    other = "model: m\npools: {plain: {engines: [http://p:1]}}\nroutes: {table: {}}"
    state.configure(
        Fleet.of(parse(other, "routes.yaml", Path(), {})), [Engine("p:1", "http://p:1", "plain", 0)]
    )
    engine = (("engine", "e:1"), ("pool", "mtp3"))
    assert (await series(metrics))["ocr_gateway_engine_load", engine] == 1
    assert ("ocr_gateway_engine_depth", engine) not in await series(metrics)
    lease.release()
    assert ("ocr_gateway_engine_load", engine) not in await series(metrics)


async def test_what_engines_counted_themselves_is_shown_over_their_restarts(state: State) -> None:
    metrics = Metrics(state)
    engine = (("engine", "e:1"), ("pool", "mtp3"))
    assert ("ocr_gateway_engine_spec_drafts_total", engine) not in await series(metrics)
    for at, drafts in enumerate((50, 60, 5, 15)):
        speculation = Speculation(drafts, 2 * drafts, 3 * drafts, (drafts, drafts, 0))
        state.record_reading("e:1", Reading(at=at, load=0, own=0, speculation={"0": speculation}))
    found = await series(metrics)
    assert found["ocr_gateway_engine_spec_drafts_total", engine] == 20
    assert found["ocr_gateway_engine_spec_accepted_tokens_total", engine] == 40
    assert found["ocr_gateway_engine_spec_draft_tokens_total", engine] == 60


async def test_speculation_is_counted_by_where_it_is_known_from(state: State) -> None:
    metrics = Metrics(state)
    zero = (("pool", "mtp3"), ("route", "table"), ("source", "stream"))
    assert (await series(metrics))["ocr_gateway_spec_drafts_total", zero] == 0
    first = (("pool", "mtp3"), ("position", "2"), ("route", "table"))
    assert (await series(metrics))["ocr_gateway_spec_accepted_tokens_per_position_total", first] == 0
    told = Speculation(110, 192, 330, (90, 64, 38))
    for sample in (
        Sample(Source.REQUEST, told),
        Sample(Source.ENGINE, told),
        Sample(Source.STREAM, Speculation(110, 190)),
    ):
        state.speculation.book("text", "mtp3", sample)
    found = await series(metrics)

    def labels(source: str) -> tuple[tuple[str, str], ...]:
        return (("pool", "mtp3"), ("route", "text"), ("source", source))

    for source, accepted in (("request", 192), ("engine", 192), ("stream", 190)):
        assert found["ocr_gateway_spec_drafts_total", labels(source)] == 110
        assert found["ocr_gateway_spec_accepted_tokens_total", labels(source)] == accepted
    assert found["ocr_gateway_spec_draft_tokens_total", labels("request")] == 330
    assert ("ocr_gateway_spec_draft_tokens_total", labels("stream")) not in found
    for position, accepted in enumerate((180, 128, 76)):
        key = (("pool", "mtp3"), ("position", str(position)), ("route", "text"))
        assert found["ocr_gateway_spec_accepted_tokens_per_position_total", key] == accepted
    assert found["ocr_gateway_acceptance_length_count", labels("request")] == 1
    assert found["ocr_gateway_acceptance_length_sum", labels("request")] == pytest.approx(1 + 192 / 110)
    assert ("ocr_gateway_acceptance_length_count", labels("engine")) not in found


async def test_a_state_tells_its_metrics_what_counts(state: State) -> None:
    metrics = Metrics(state)
    state.mark("e:1", up=True)
    lease = state.take("table")
    assert isinstance(lease, Lease)
    with lease:
        lease.request_sent(AnswerKind.WHOLE)
        lease.answer_complete(Speculation(4, 6, 12, (3, 2, 1)), 11)
    assert (await series(metrics))[
        "ocr_gateway_spec_drafts_total", (("pool", "mtp3"), ("route", "table"), ("source", "request"))
    ] == 4


async def test_figures_that_do_not_add_up_are_counted_by_engine_and_reason(state: State) -> None:
    metrics = Metrics(state)
    state.mark("e:1", up=True)
    name = "ocr_gateway_engine_speculation_rejected_total"
    assert not [found for found, _ in await series(metrics) if found == name]
    for fault in (SpeculationFault.FORMAT, SpeculationFault.HISTOGRAM_SUMS, SpeculationFault.FORMAT):
        lease = state.take("table")
        assert isinstance(lease, Lease)
        with lease:
            lease.request_sent(AnswerKind.WHOLE)
            lease.answer_complete(fault, 11)
    found = {labels: value for (one, labels), value in (await series(metrics)).items() if one == name}
    engine = (("engine", "e:1"), ("pool", "mtp3"))
    assert found == {(*engine, ("reason", "format")): 2, (*engine, ("reason", "histogram_sums")): 1}


async def test_what_happened_is_counted(state: State) -> None:
    metrics = Metrics(state)
    metrics.finished(
        record(
            route="table",
            reason="image",
            pool="mtp3",
            engine="e:1",
            code=200,
            seconds=2.0,
            waited_s=0.5,
            first_token_s=0.2,
            usage=Usage(7, 40),
            depths=(0, 3),
            retried=("died",),
            overhead={"sort": 0.003},
        )
    )
    metrics.finished(record(code=413, seconds=0.01))
    metrics.finished(record(route="table", code=503, waited_s=0.25))
    metrics.finished(record(route="text", pool="mtp3", engine="e:1", code=200))
    metrics.shed("table", "queue_full")
    metrics.reloaded(valid=True)
    metrics.reloaded(valid=False)
    found = await series(metrics)
    assert found["ocr_gateway_chosen_depth_total", (("depth", "3"), ("route", "table"))] == 1
    assert found["ocr_gateway_chosen_depth_total", (("depth", "0"), ("route", "table"))] == 1
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
    queued = {labels: value for (name, labels), value in found.items() if name.endswith("queue_seconds_sum")}
    assert queued == {
        route_pool: 0.5,
        (("pool", ""), ("route", "table")): 0.25,  # waited in vain
        (("pool", "mtp3"), ("route", "text")): 0,  # need not wait
    }
    assert found["ocr_gateway_prompt_tokens_total", route_pool] == 7
    assert found["ocr_gateway_completion_tokens_total", route_pool] == 40
    assert found["ocr_gateway_overhead_seconds_sum", (("stage", "sort"),)] == pytest.approx(0.003)
    assert ("ocr_gateway_overhead_seconds_count", (("stage", "receive"),)) not in found
    assert any(name == "ocr_gateway_build_info" for name, _ in found)


async def test_scrapers_that_ask_for_openmetrics_get_it(state: State) -> None:
    page, content_type = await Metrics(state).page("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
async def test_a_long_page_holds_nothing_up_and_is_what_it_would_be_in_one_piece(accept: str) -> None:
    routes = ", ".join(f"r{number}: {{}}" for number in range(8))
    text = CONFIG.replace("text: {}, table: {schedule: [[1, 63, 3]]}", routes)
    fleet = Fleet.of(parse(text, "routes.yaml", Path(), {}))
    engines = [Engine(f"e{number}:1", f"http://e{number}:1", "mtp3", 3) for number in range(100)]
    metrics = Metrics(State(fleet, engines, lambda: 10.0, Random(0)))
    turns = 0

    async def meanwhile() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(meanwhile())
    page, _ = await metrics.page(accept)
    other.cancel()
    lines = page.decode().splitlines()
    assert turns >= len(lines) / 256
    whole = choose_encoder(accept)[0](metrics.registry).decode().splitlines()
    # In one piece, the family that is collected in parts has its head before each of them.
    head = [line for line in lines if line.startswith("# ") and "engine_in_flight" in line]
    assert len(head) == 2
    told = [line for line in whole if line not in head and "engine_in_flight" in line]
    assert told == [line for line in lines if line not in head and "engine_in_flight" in line]
    assert [line.split()[:-1] for line in lines if line not in head] == [
        line.split()[:-1] for line in whole if line not in head
    ]
    assert len(told) == 800


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
@given(
    st.lists(
        st.tuples(
            st.floats(0, 1000) | st.sampled_from([0.05, 0.1, 640.0]),
            st.sampled_from(["text", 'a "quoted\\ route\n']),
        )
    )
)
def test_counters_and_histograms_are_written_as_the_library_writes_its_own(
    accept: str, seen: list[tuple[float, str]]
) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    made = (
        _Counter(ours, "shed", "Some", "route"),
        _Counter(ours, "reloads", "Others"),
        _Histogram(ours, "waits", "Times", "route", bounds=(0.05, 0.1, 1, 640)),
    )
    known = (
        Counter("ocr_gateway_shed", "Some", ["route"], registry=theirs),
        Counter("ocr_gateway_reloads", "Others", registry=theirs),
        Histogram("ocr_gateway_waits", "Times", ["route"], buckets=(0.05, 0.1, 1, 640), registry=theirs),
    )
    for value, route in seen:
        made[0].add(value, route)
        made[1].add(1)
        made[2].observe(value, route)
        known[0].labels(route).inc(value)
        known[1].inc()
        known[2].labels(route).observe(value)
    write = choose_encoder(accept)[0]
    expected = [line for line in write(theirs).decode().splitlines() if "_created" not in line]
    assert write(ours).decode().splitlines() == expected
