from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gateway.tools.demo import demo_load, watch
from gateway.tools.demo.watch import MetricsReading, RecentRequests, StatusLines, recent
from tests.support import until

if TYPE_CHECKING:
    from tests.conftest import Running

JSON = {"content-type": "application/json"}
PAGE = """
ocr_gateway_chosen_depth_total{depth="3",route="text"} 8
ocr_gateway_chosen_depth_total{depth="0",route="text"} 2
ocr_gateway_spec_drafts_total{pool="mtp3",route="text",source="request"} 100
ocr_gateway_spec_drafts_total{pool="mtp1",route="text",source="engine"} 20
ocr_gateway_spec_drafts_total{pool="mtp3",route="text",source="stream"} 5000
ocr_gateway_spec_accepted_tokens_total{pool="mtp3",route="text",source="request"} 180
ocr_gateway_spec_accepted_tokens_total{pool="mtp3",route="text",source="stream"} 5000
ocr_gateway_completion_tokens_total{pool="mtp3",route="text"} 400
ocr_gateway_completion_tokens_total{pool="plain",route="table"} 600
ocr_gateway_in_flight{route="text"} 3
ocr_gateway_waiting{route="text"} 2
ocr_gateway_engine_in_flight{engine="e",pool="mtp3",route="text"} 3
"""


def reading(at: float, chosen: dict[tuple[str, int], int], **counts: float) -> MetricsReading:
    drafts, accepted = int(counts.get("drafts", 0)), int(counts.get("accepted", 0))
    return MetricsReading(
        at,
        Counter(chosen),
        Counter(text=drafts),
        Counter(text=accepted),
        counts.get("tokens", 0.0),
        int(counts.get("load", 0)),
    )


def test_a_page_is_read_without_estimates() -> None:
    found = watch.read(PAGE, 7.0)
    assert found.at == 7.0
    assert found.chosen == {("text", 3): 8, ("text", 0): 2}
    assert (found.drafts["text"], found.accepted["text"]) == (120, 180)
    assert (found.tokens, found.load) == (1000, 5)


async def test_the_gateways_own_page_is_read(running: Running) -> None:
    request = demo_load.chat("Text Recognition:", demo_load.page(), max_tokens=4)
    reply = await running.http.post("/v1/chat/completions", content=request, headers=JSON)
    assert reply.status_code == 200
    await until(lambda: not running.in_flight("text"))
    found = watch.read((await running.http.get("/metrics")).text, 0.0)
    assert found.chosen == {("text", 0): 1}
    assert (found.tokens, found.load) == (2, 0)


def test_a_route_is_told_by_what_changed() -> None:
    before = reading(0, {("text", 3): 10, ("text", 0): 5}, drafts=10, accepted=10)
    now = reading(5, {("text", 3): 11, ("text", 0): 8, ("table", 1): 9}, drafts=30, accepted=60)
    assert recent("text", before, now) == RecentRequests(0, 0.75, 4, 1 + 50 / 20)
    assert recent("table", before, now) == RecentRequests(1, 1.0, 9, None)
    assert recent("key-value", before, now) == RecentRequests(None, 0.0, 0, None)


def test_lines_tell_of_the_window_and_all_say_simulated() -> None:
    lines = StatusLines(["text", "table"], window_s=10)
    heading, first = lines.next(reading(100, {}))
    assert heading.split() == ["simulated", "time", "load", "|", "text", "|", "table", "|", "tokens/s"]
    assert first.split() == ["simulated", "0:00", "0", "|", "-", "|", "-", "|", "0"]
    told = [
        lines.next(
            reading(100 + 5 * step, {("text", 3): 10 * step}, drafts=step, tokens=100 * step, load=step)
        )
        for step in range(1, 15)
    ]
    (last,) = told[-1]
    assert last.split() == ["simulated", "1:10", "14", "|", "depth", "3", "100%", "1.00", "|", "-", "|", "20"]
    (moved,) = lines.next(reading(175, {("text", 3): 140, ("text", 1): 90}, drafts=13, tokens=3400))
    assert moved.split() == ["simulated", "1:15", "0", "|", "depth", "1", "90%", "-", "|", "-", "|", "210"]
    assert all(line.startswith("simulated ") for lines in told for line in lines)
    assert len({line.index("|") for line in (heading, first, last, moved)}) == 1


def test_the_heading_comes_again() -> None:
    lines = StatusLines(["text"], window_s=10)
    assert sum(len(lines.next(reading(at, {}))) for at in range(41)) == 41 + 3
