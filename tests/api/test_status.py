import json
from pathlib import Path
from random import Random
from typing import Any

from gateway.api.status import report
from gateway.config import parse
from gateway.model import Engine, Reading, RequestRecord, Speculation, SpeculationFault, Usage
from gateway.policy.choose.split import SplitPlan
from gateway.state.fleet import Fleet
from gateway.state.lease import Lease
from gateway.state.ledger import AnswerKind
from gateway.state.store import State

CONFIG = """
model: glm-ocr
pools:
  deep:
    speculative_config: {method: mtp, num_speculative_tokens: 3}
    engines: [http://d:80]
    api_key: hunter2
  plain: {engines: [http://p:80, http://q:80]}
routes:
  text: {schedule: [[1, 63, 3], [64, 4096, 0]]}
  table: {pools: [plain]}
"""


def test_it_shows_what_the_next_request_is_chosen_by() -> None:
    fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
    engines = [
        Engine("d:80", "http://d:80", "deep", 3, "hunter2"),
        Engine("p:80", "http://p:80", "plain", 0),
        Engine("q:80", "http://q:80", "plain", 0),
    ]
    state = State(fleet, engines, lambda: 50.0, Random(0))
    for name in ("d:80", "p:80", "q:80"):
        state.mark(name, up=name != "q:80")
    state.record_reading("p:80", Reading(at=48.0, load=7, own=0, mismatch="it speculates", simulated=True))
    assert isinstance(state.take("text"), Lease)
    told = report(state.snapshot(), fleet)
    text = told["routes"]["text"]
    assert [row["engine"] for row in text["candidates"]] == ["d:80", "p:80", "q:80"]
    assert [row["fitness"] for row in text["candidates"]] == ["free", "free", "down"]
    assert (text["in_flight"], text["chosen_by"], text["crossovers"]) == (
        1,
        "schedule",
        {"deep": 64, "plain": 64},
    )
    assert (text["depth"], told["routes"]["table"]["depth"]) == (3, 0)
    assert [row["engine"] for row in told["routes"]["table"]["candidates"]] == ["p:80", "q:80"]
    deep, plain, _ = told["engines"]
    assert (deep["simulated"], plain["simulated"]) == (False, True)
    assert deep["ours"] == {"text": 1, "table": 0}
    assert (plain["load"], plain["reading_age_s"], plain["mismatch"]) == (7, 2.0, "it speculates")
    assert told["pools"]["plain"]["engines"] == ["p:80", "q:80"]
    assert told["kept_apart"] == {}
    state.adopt_split(
        SplitPlan((9, 9), {"deep": [9.0, 0.2], "plain": [0.0, 8.8]}, {"deep": 9.2, "plain": 4.4})
    )
    apart = report(state.snapshot(), fleet)["kept_apart"]
    assert apart == {"deep": {"text": 9, "table": 0}, "plain": {"text": 0, "table": 9}}
    assert "hunter2" not in json.dumps(told)


def test_why_an_engine_is_down_and_which_names_have_no_address_is_told() -> None:
    fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
    engines = [Engine(name, f"http://{name}", "plain", 0) for name in ("p:80", "q:80", "r:80", "s:80")]
    state = State(fleet, engines, lambda: 50.0, Random(0))
    state.mark("p:80", up=False, fault="it refuses connections")
    state.mark("q:80", up=False, fault="it refuses connections")
    state.mark("q:80", up=True)
    state.mark("r:80", up=True)
    state.record_reading("r:80", Reading(at=48.0, load=0, own=0, awake=False))
    state.unresolved = {"deep": ("deep:8000: it has no addresses",)}
    told = report(state.snapshot(), fleet)
    assert {row["engine"]: row["fault"] for row in told["engines"]} == {
        "p:80": "it refuses connections",
        "q:80": None,
        "r:80": "it sleeps, by its metrics",
        "s:80": None,
    }
    assert told["pools"]["deep"]["unresolved"] == ["deep:8000: it has no addresses"]
    assert told["pools"]["plain"]["unresolved"] == []
    # What is told later without a reason does not take the reason away.
    state.mark_lost("p:80")
    assert report(state.snapshot(), fleet)["engines"][0]["fault"] == "it refuses connections"


def test_what_came_from_the_environment_is_not_shown() -> None:
    text = CONFIG.replace(
        "num_speculative_tokens: 3}", "num_speculative_tokens: 3, model: '${S}', l: ['${S}']}"
    )
    fleet = Fleet.of(parse(text, "routes.yaml", Path(), {"S": "planted"}))
    state = State(fleet, [], lambda: 50.0, Random(0))
    told = report(state.snapshot(), fleet)
    assert told["pools"]["deep"]["speculative_config"] == {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "model": "a value (not shown)",
        "l": ["a value (not shown)"],
    }
    assert "planted" not in json.dumps(told)


def test_figures_that_are_not_counted_are_shown_with_their_engine() -> None:
    fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
    state = State(fleet, [Engine("d:80", "http://d:80", "deep", 3)], lambda: 50.0, Random(0))
    state.mark("d:80", up=True)
    assert report(state.snapshot(), fleet)["engines"][0]["speculation_rejected"] == {}
    for told in (SpeculationFault.FORMAT, SpeculationFault.FORMAT, Speculation(77, 77, 231, (77, 0, 0))):
        lease = state.take("text")
        assert isinstance(lease, Lease)
        with lease:
            lease.request_sent(AnswerKind.WHOLE)
            lease.answer_complete(told, 76)
    shown = json.loads(json.dumps(report(state.snapshot(), fleet)))
    assert shown["engines"][0]["speculation_rejected"] == {"format": 2, "drafts_over_tokens": 1}


def test_acceptance_is_shown_by_route_and_pool_exact_and_estimated() -> None:
    fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
    now = [50.0]
    state = State(fleet, [Engine("d:80", "http://d:80", "deep", 3)], lambda: now[0], Random(0))
    rows = [Speculation(0, 0, 0, (0, 0, 0)), Speculation(50, 30, 150, (15, 10, 5))]

    def read(at: int) -> None:
        now[0] = at
        done = len(answers)
        counted = rows[min(done, 1)]
        state.record_reading(
            "d:80", Reading(at, 0, 0, finished=done, chunks=50 * done, speculation={"0": counted})
        )

    def answered(told: Speculation | None) -> None:
        lease = state.take("text")
        assert isinstance(lease, Lease)
        with lease:
            lease.request_sent(AnswerKind.STREAM)
            for _ in range(51):
                lease.count_step()
            lease.answer_complete(told, 76)
        answers.append(1)

    answers: list[int] = []
    read(50)
    state.mark("d:80", up=True)
    assert report(state.snapshot(), fleet)["routes"]["text"]["acceptance"] == {}
    answered(None)
    for at in (51, 52, 53):
        read(at)
    estimate = {"length": 1.5, "drafts": 50, "efficiency": None, "per_position": []}
    told = report(state.snapshot(), fleet)
    assert told["routes"]["text"]["acceptance"] == {"deep": {"stream": estimate}}
    assert (told["engines"][0]["acceptance_length"], told["engines"][0]["merges_chunks"]) == (1.6, False)
    assert told["routes"]["text"]["acceptance_length"] == 1.5
    answered(Speculation(10, 18, 30, (8, 6, 4)))
    told = report(state.snapshot(), fleet)["routes"]["text"]
    assert told["acceptance_length"] == 2.8  # where engines tell, what is estimated is no matter
    assert told["acceptance"]["deep"] == {
        "stream": estimate,
        "request": {"length": 2.8, "drafts": 10, "efficiency": 0.6, "per_position": [0.8, 0.6, 0.4]},
    }
    now[0] += 3600
    assert report(state.snapshot(), fleet)["routes"]["text"]["acceptance"] == {}
    assert report(state.snapshot(), fleet)["routes"]["text"]["acceptance_length"] is None


def record(number: int, code: int = 200, **known: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "pool": "deep",
        "engine": "d:80",
        "depth": 3,
        "usage": Usage(7, 9),
        "why": "schedule",
        "key": "not for everybody",
    }
    fields |= {"reason": "prompt", "seconds": 1.23456, "acceptance_length": 2.71828, **known}
    return RequestRecord(
        at=1e9 + number, request_id=f"id-{number}", path="/v1/completions", route="text", code=code, **fields
    )


def test_what_became_of_the_last_requests_is_told_the_latest_first() -> None:
    fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
    state = State(fleet, [], lambda: 50.0, Random(0))
    for number in range(60):
        state.history.record_request(record(number))
    shed = dict.fromkeys(("pool", "engine", "depth", "usage", "acceptance_length"))
    state.history.record_request(record(60, 503, why="queue_full", **shed))
    told = report(state.snapshot(), fleet)
    assert [row["request_id"] for row in told["recent"]] == [f"id-{number}" for number in range(60, 10, -1)]
    first, second, *_ = json.loads(json.dumps(told["recent"]))
    assert (first["code"], first["why"], first["engine"], first["acceptance_length"]) == (
        503,
        "queue_full",
        None,
        None,
    )
    assert second == {
        "at": 1e9 + 59,
        "request_id": "id-59",
        "route": "text",
        "reason": "prompt",
        "pool": "deep",
        "engine": "d:80",
        "depth": 3,
        "code": 200,
        "seconds": 1.2346,
        "waited_s": 0.0,
        "acceptance_length": 2.718,
        "completion_tokens": 9,
        "why": "schedule",
    }


def test_a_route_tells_its_requests_its_errors_and_its_pace() -> None:
    fleet = Fleet.of(parse(CONFIG, "routes.yaml", Path(), {}))
    now = [50.0]
    state = State(fleet, [], lambda: now[0], Random(0))
    for number, code in enumerate((200, 400, 499, 502, 503)):
        state.history.record_request(record(number, code))
    state.history.record_request(record(9)._replace(route="gone with a reload"))
    now[0] += 10
    state.history.record_answer("text", 900)
    state.history.record_answer("gone with a reload", 900)
    text, table = report(state.snapshot(), fleet)["routes"].values()
    assert (text["requests"], text["errors"]) == (5, 2)
    assert 90 < text["tokens_per_second"] < 120
    assert (table["requests"], table["errors"], table["tokens_per_second"], table["depth"]) == (0, 0, 0, None)
    state.configure(fleet, [])
    assert report(state.snapshot(), fleet)["routes"]["text"]["requests"] == 5
