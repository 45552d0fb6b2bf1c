from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.serving import SHARED
from gateway.engines.vllm_json import speculative_object
from gateway.engines.vllm_page import FINISH_REASONS, EngineCounts, LatencyHistogram, metrics_page
from gateway.model import Speculation, SpeculationFault
from gateway.wire.vllm.engine import (
    EngineReading,
    EngineWork,
    Simulated,
    is_stopping,
    read_metrics,
    read_models,
    read_speculation,
    read_version,
    read_work,
)

CAPTURES = SHARED / "tiny-vllm/captures"
PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
"""

count = st.integers(0, 2**50)
requests = st.integers(0, 200_000)


@given(
    st.builds(
        EngineCounts,
        running=requests,
        waiting=requests,
        prompt_tokens=count,
        generation_tokens=count,
        finished=st.dictionaries(st.sampled_from(FINISH_REASONS), st.integers(0, 2**40)),
        awake=st.sampled_from([None, True, False]),
        kv_usage=st.one_of(st.none(), st.floats(0, 1)),
        speculation=st.one_of(
            st.none(),
            st.builds(
                Speculation,
                count,
                count,
                count,
                st.lists(st.integers(0, 2**40), min_size=1, max_size=16).map(tuple),
            ),
        ),
        latencies=st.just([LatencyHistogram("time_to_first_token_seconds")]),
    ),
    st.text(),
)
def test_what_is_written_is_read(counts: EngineCounts, model: str) -> None:
    assert read_metrics(metrics_page(counts, model).encode("utf-8", "replace")) == EngineReading(
        running=counts.running,
        waiting=counts.waiting,
        awake=counts.awake is not False,
        generation_tokens=counts.generation_tokens,
        prompt_tokens=counts.prompt_tokens,
        finished=sum(counts.finished.values()),
        speculation={} if counts.speculation is None else {"0": counts.speculation},
    )


@given(st.lists(st.tuples(requests, st.booleans()), min_size=1, max_size=4))
def test_data_parallel_ranks_are_summed_and_one_asleep_is_asleep(ranks: list[tuple[int, bool]]) -> None:
    pages = [
        metrics_page(
            EngineCounts(
                running=number, awake=awake, speculation=Speculation(number, number, number, (number,))
            ),
            "m",
            engine=str(rank),
        )
        for rank, (number, awake) in enumerate(ranks)
    ]
    reading = read_metrics("".join(pages).encode())
    total = sum(number for number, _ in ranks)
    assert reading.running == total
    assert reading.speculation == {
        str(rank): Speculation(number, number, number, (number,)) for rank, (number, _) in enumerate(ranks)
    }
    assert reading.awake == all(awake for _, awake in ranks)


def test_an_engines_page_needs_only_its_load() -> None:
    reading = read_metrics(PAGE)
    assert (reading.running, reading.waiting, reading.awake) == (2, 1, True)
    assert reading.speculation == {}


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>vllm:num_requests_running</html>",
        PAGE.replace(b"num_requests_waiting", b"num_requests_wanting"),
        PAGE.replace(b"2.0", b"NaN"),
        PAGE.replace(b"2.0", b"+Inf"),
        PAGE.replace(b"2.0", b"two"),
        PAGE.replace(b"2.0", b"-1.0"),
        PAGE.replace(b"2.0", b"1e300"),
        PAGE.replace(b"2.0", b"1" * 100_000),
        PAGE.replace(b"2.0", b"999999.0") + PAGE.replace(b"2.0", b"9.0"),
        PAGE + b"vllm:generation_tokens_total{} -3\n",
        PAGE + b'vllm:request_success_total{finished_reason="stop"} 1\n' * 10_000,
        PAGE + b"".join(b'vllm:spec_decode_num_drafts_total{engine="%d"} 1\n' % rank for rank in range(300)),
        PAGE + b'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0"} 1.0\n',
        PAGE + b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="999999"} 1.0\n',
    ],
)
def test_another_page_is_refused(page: bytes) -> None:
    with pytest.raises(ValueError, match=r"vllm|position|could not convert|no engine has|longer than any"):
        read_metrics(page)


@given(st.binary(max_size=200))
def test_no_page_breaks_the_reader(page: bytes) -> None:
    for data in (page, PAGE + page):
        with contextlib.suppress(ValueError):
            assert isinstance(read_metrics(data), EngineReading)


def test_labels_cannot_pretend_to_be_others() -> None:
    name = r"a} 7.0,position=\"5\",sleep_state=\"awake\""
    page = (
        'vllm:spec_decode_num_drafts_total{engine="0"} 4.0\n'
        "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        f'{{engine="0",model_name="{name}",position="0"}} 3.0\n'
    )
    assert read_metrics(PAGE + page.encode()).speculation == {"0": Speculation(4, 0, 0, (3,))}


@pytest.mark.parametrize("engine", ["mtp0", "mtp1", "mtp3", "ngram3"])
def test_recorded_pages_are_read(engine: str) -> None:
    if not CAPTURES.exists():
        pytest.skip("needs the recorded pages")
    depth = int(re.sub(r"\D", "", engine))
    reading = read_metrics((CAPTURES / engine / "metrics_after_single.txt").read_bytes())
    assert (reading.running, reading.waiting, reading.awake) == (0, 0, True)
    assert (reading.generation_tokens, reading.prompt_tokens, reading.finished) == (1116, 120, 6)
    if depth:
        told = reading.speculation["0"]
        assert len(told.accepted_per_position) == depth
        assert told.accepted == sum(told.accepted_per_position)
        assert told.draft_tokens == depth * told.drafts > 0
    else:
        assert reading.speculation == {}


@pytest.mark.parametrize(("engine", "steps"), [("mtp0", 1110), ("mtp3", 413)])
def test_a_recorded_pages_work_is_read(engine: str, steps: int) -> None:
    if not CAPTURES.exists():
        pytest.skip("needs the recorded pages")
    page = (CAPTURES / engine / "metrics_after_single.txt").read_bytes()
    work = read_work(page)
    assert work.reading == read_metrics(page)
    assert (work.preemptions, work.kv_usage) == (0, 0)
    assert (work.cache_hits, work.cache_queries) == (0, work.reading.prompt_tokens)
    assert (work.first_tokens, work.steps) == (work.reading.finished, steps)
    assert work.steps_s is not None
    assert work.steps_s > 0
    assert work.simulated is None
    told = work.reading.speculation
    # Each step of one request at a time is a draft, but for the few whose drafts would not fit.
    assert not told or told["0"].drafts == pytest.approx(steps, rel=0.01)


def test_work_is_summed_over_ranks_and_the_fullest_cache_counts() -> None:
    inter_token = LatencyHistogram("inter_token_latency_seconds")
    inter_token.observe(0.5, times=4)
    first_token = LatencyHistogram("time_to_first_token_seconds")
    first_token.observe(2)
    pages = [
        metrics_page(
            EngineCounts(running=1, kv_usage=usage, latencies=(first_token, inter_token)), "m", engine=rank
        )
        + f'vllm:num_preemptions_total{{engine="{rank}"}} 3.0\n'
        f'vllm:prefix_cache_hits_total{{engine="{rank}"}} 5.0\n'
        f'vllm:prefix_cache_queries_total{{engine="{rank}"}} 7.0\n'
        f'vllm:external_prefix_cache_queries_total{{engine="{rank}"}} 11.0\n'
        for rank, usage in (("0", 0.25), ("1", 0.75))
    ]
    page = "".join(pages).encode()
    assert read_work(page) == EngineWork(
        read_metrics(page),
        preemptions=6,
        kv_usage=0.75,
        cache_hits=10,
        cache_queries=14,
        first_tokens=2,
        steps=8,
        steps_s=4,
    )


def test_work_that_is_not_told_is_not_known() -> None:
    assert read_work(PAGE) == EngineWork(read_metrics(PAGE))


@given(
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])),
    st.floats(0, 1e9),
    st.floats(1e-6, 1e6),
)
def test_a_simulated_engines_page_tells_its_clock(fit: str, clock_s: float, scale: float) -> None:
    simulated = Simulated(fit, clock_s, scale)
    page = metrics_page(EngineCounts(running=2), "m", simulated=simulated)
    assert page.startswith("# simulated engine, fit ")
    assert read_work(page.encode()).simulated == simulated
    assert read_metrics(page.encode()).simulated
    assert read_metrics(page.encode()).running == 2


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"# simulated engine, fit h100-9b\n" + PAGE,
        PAGE + b"vllm:num_preemptions_total NaN\n",
        metrics_page(EngineCounts(), "m", simulated=Simulated("x", float("inf"), 1)).encode(),
    ],
)
def test_no_work_is_read_off_another_page(page: bytes) -> None:
    with pytest.raises(ValueError, match=r"vLLM"):
        read_work(page)


@given(st.binary(max_size=200))
def test_no_page_breaks_the_reader_of_work(page: bytes) -> None:
    for data in (page, PAGE + page, b"# simulated engine, fit " + page + PAGE):
        with contextlib.suppress(ValueError):
            assert isinstance(read_work(data), EngineWork)


# The `metrics` of a recorded answer of 301 tokens at depth 3.
METRICS = {"time_to_first_token_ms": None, "speculative_decoding": speculative_object([20, 26, 26, 38], 330)}


def test_an_answers_speculation_is_read() -> None:
    assert read_speculation(json.dumps(METRICS).encode()) == Speculation(110, 192, 330, (90, 64, 38))


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=9), st.data())
def test_what_is_told_of_an_answer_is_read_as_it_was(histogram: list[int], data: st.DataObject) -> None:
    drafts, accepted = sum(histogram), sum(place * count for place, count in enumerate(histogram))
    draft_tokens = data.draw(st.integers(accepted, drafts * (len(histogram) - 1)))
    told = read_speculation(
        json.dumps({"speculative_decoding": speculative_object(histogram, draft_tokens)}).encode()
    )
    assert isinstance(told, Speculation)
    assert (told.drafts, told.accepted, told.draft_tokens) == (drafts, accepted, draft_tokens)
    assert sum(told.accepted_per_position) == accepted
    assert list(told.accepted_per_position) == sorted(told.accepted_per_position, reverse=True)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"acceptance_histogram": None}, SpeculationFault.FORMAT),
        ({"acceptance_histogram": []}, SpeculationFault.FORMAT),
        ({"acceptance_histogram": [110]}, SpeculationFault.FORMAT),
        ({"acceptance_histogram": [20, 26, 26, -38]}, SpeculationFault.FORMAT),
        ({"acceptance_histogram": [20, 26, 26, 38.5]}, SpeculationFault.FORMAT),
        ({"acceptance_histogram": [20, 26, 26, 37]}, SpeculationFault.HISTOGRAM_SUMS),
        ({"acceptance_histogram": [0] * 200}, SpeculationFault.FORMAT),
        ({"acceptance_histogram": "20,26,26,38"}, SpeculationFault.FORMAT),
        ({"num_spec_steps": 109}, SpeculationFault.HISTOGRAM_SUMS),
        ({"num_spec_steps": None}, SpeculationFault.FORMAT),
        ({"num_accepted_draft_tokens": 191}, SpeculationFault.HISTOGRAM_SUMS),
        ({"num_draft_tokens": 191}, SpeculationFault.ACCEPTED_OVER_DRAFTED),
        ({"num_draft_tokens": 331}, SpeculationFault.DRAFTED_OVER_POSITIONS),
        ({"num_draft_tokens": 2**60}, SpeculationFault.FORMAT),
    ],
)
def test_figures_that_do_not_add_up_are_no_figures(
    changed: dict[str, object], fault: SpeculationFault
) -> None:
    figures = {**speculative_object([20, 26, 26, 38], 330), **changed}
    assert read_speculation(json.dumps({"speculative_decoding": figures}).encode()) is fault


def test_another_versions_object_is_no_figure() -> None:
    assert read_speculation(b'{"speculative_decoding": {"drafts": 3}}') is SpeculationFault.FORMAT


@pytest.mark.parametrize(
    "raw",
    [
        b"null",
        b"{}",
        b"[]",
        b'{"speculative_decoding": null}',
        b'{"speculative_decoding": 3}',
        b"",
        b"\xff",
        b"[" * 9999,
    ],
)
def test_where_nothing_is_told_there_is_no_figure(raw: bytes) -> None:
    assert read_speculation(raw) is None


@pytest.mark.parametrize(("name", "drafts"), [("chat_response.txt", 110), ("stream_formula_sse.txt", 25)])
def test_recorded_answers_are_read(name: str, drafts: int) -> None:
    if not CAPTURES.exists():
        pytest.skip("needs the recorded answers")
    recorded = (CAPTURES / "per_request_metrics" / name).read_text()
    (metrics,) = re.findall(r'"metrics":(\{.*\})\}', recorded)
    told = read_speculation(metrics.encode())
    assert isinstance(told, Speculation)
    assert told.drafts == drafts


def test_an_engine_tells_its_version() -> None:
    assert read_version(b'{"version": "0.33.0", "more": 1}') == "0.33.0"


@pytest.mark.parametrize("page", [b"", b"{}", b'{"version": 5}', b"<html>", b"\xff"])
def test_what_is_no_version_is_refused(page: bytes) -> None:
    with pytest.raises(ValueError, match="not a vLLM version page"):
        read_version(page)


def test_an_engine_tells_its_models() -> None:
    assert read_models(b'{"object": "list", "data": [{"id": "a", "root": "/m"}, {"id": "b"}]}') == ("a", "b")


@pytest.mark.parametrize("page", [b"", b"{}", b'{"data": []}', b'{"data": [{"id": 5}]}', b"\xff"])
def test_what_lists_no_model_is_refused(page: bytes) -> None:
    with pytest.raises(ValueError, match=r"no model|not a page of models"):
        read_models(page)


def test_tells_an_engine_that_shuts_down_from_one_that_failed() -> None:
    assert is_stopping("cannot schedule new futures after shutdown")
    assert not is_stopping("Failed to load image: cannot identify image file")
    assert not is_stopping("unknown format: cannot schedule new futures after shutdown")


def test_an_absurd_version_and_an_absurd_histogram_cost_nothing() -> None:
    told = read_version(b'{"version": "0.3\\u0000\\n' + b"x" * 100_000 + b'"}')
    assert told.startswith("0.3xxx")
    assert len(told) <= 100
    many = b"0," * 100_000 + b"0"
    assert read_speculation(b'{"speculative_decoding": {"acceptance_histogram": [' + many + b"]}}") is None


LINES = st.lists(
    st.builds(
        "vllm:{}{} {}".format,
        st.sampled_from(
            [
                "num_requests_running",
                "num_requests_waiting",
                "engine_sleep_state",
                "spec_decode_num_drafts_total",
                "spec_decode_num_accepted_tokens_total",
                "spec_decode_num_accepted_tokens_per_pos_total",
                "kv_cache_usage_perc",
                "prefix_cache_hits_total",
            ]
        ),
        st.sampled_from(["", "{}", '{engine="1",position="3"}', '{position="999999999"}', '{a="}"}', "{"]),
        st.one_of(st.floats().map(str), st.integers().map(str), st.text(max_size=5)),
    ),
    max_size=8,
)


@given(LINES)
def test_no_series_break_the_readers(lines: list[str]) -> None:
    page = "\n".join([*lines, "vllm:num_requests_running 1", "vllm:num_requests_waiting 2"]).encode()
    for read in (read_metrics, read_work):
        with contextlib.suppress(ValueError):
            read(page)


@given(
    st.dictionaries(
        st.sampled_from(sorted(speculative_object([1, 1], 2))), st.lists(st.integers()) | st.integers()
    )
)
def test_what_was_drafted_adds_up_or_is_not_told(told: dict[str, object]) -> None:
    raw = json.dumps({"speculative_decoding": {**speculative_object([2, 1, 1], 8), **told}}).encode()
    found = read_speculation(raw)
    assert isinstance(found, SpeculationFault) or (
        found is not None and found.adds_up and found.accepted == sum(found.accepted_per_position)
    )


@given(st.binary(max_size=60))
def test_no_bytes_break_the_readers_of_small_pages(raw: bytes) -> None:
    assert read_speculation(raw) is None
    with pytest.raises(ValueError, match="version page"):
        read_version(raw)
