"""How many requests there are, how a stop comes, and what became of those that ended."""

from __future__ import annotations

import pytest

from gateway.model import RequestRecord, Usage
from gateway.policy.account.pace import MeanTokens, Pace
from gateway.state.requests import OpenRequests, RequestHistory

ENDED = RequestRecord(at=1e9, request_id="id", path="/v1/completions", code=200, seconds=1.2, route="text")


def test_requests_and_errors_are_counted_by_route() -> None:
    history = RequestHistory(lambda: 100.0)
    history.configure(["text", "table"])
    for code in (200, 404, 499, 500, 503):
        history.record_request(ENDED._replace(code=code))
    history.record_request(ENDED._replace(route="gone"))
    assert (history.routes["text"].requests, history.routes["text"].errors) == (5, 2)
    assert history.routes["table"].requests == 0


def test_a_route_that_stays_keeps_its_counts() -> None:
    history = RequestHistory(lambda: 100.0)
    history.configure(["text", "table"])
    history.record_request(ENDED)
    history.configure(["text", "list"])
    assert list(history.routes) == ["text", "list"]
    assert history.routes["text"].requests == 1


def test_the_last_fifty_are_remembered_the_latest_first() -> None:
    history = RequestHistory(lambda: 100.0)
    for number in range(60):
        history.record_request(ENDED._replace(request_id=str(number)))
    assert [decision.request_id for decision in history.recent()] == [str(n) for n in range(59, 9, -1)]


def test_answers_make_a_routes_pace() -> None:
    now = [100.0]
    history = RequestHistory(lambda: now[0])
    history.configure(["text"])
    for _ in range(300):
        now[0] += 1
        history.record_answer("text", 50)
        history.record_answer("gone", 50)
    assert history.routes["text"].rate(now[0]) == pytest.approx(50, rel=0.02)


def test_figures_are_those_of_answers_counted_one_by_one() -> None:
    now, pace, mean = [100.0], Pace(100.0), MeanTokens()
    history = RequestHistory(lambda: now[0])
    history.configure(["text"])
    for number in range(200):
        now[0] += 0.1
        tokens = number * 37 % 500
        pace, mean = pace.after(tokens, now[0]), mean.after(tokens)
        history.record_request(ENDED._replace(usage=Usage(5, tokens)))
        if number in (3, 70, 199):
            assert history.routes["text"].rate(now[0] + 1) == pace.rate(now[0] + 1)
            assert history.mean_tokens("text") == mean.tokens
    history.record_request(ENDED._replace(usage=Usage(5, 900), code=502))  # no answer
    assert history.mean_tokens("text") == mean.tokens


def test_a_stop_is_announced_before_new_work_is_refused() -> None:
    requests = OpenRequests()
    assert (requests.closing, requests.draining, requests.kept) == (False, False, frozenset())
    requests.announce_stop()
    assert (requests.closing, requests.draining) == (True, False)
    kept = frozenset({("10.0.0.1", 4711)})
    requests.drain(kept)
    assert (requests.draining, requests.kept) == (True, kept)
