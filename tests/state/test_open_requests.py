"""How many requests there are, and how a stop comes."""

from __future__ import annotations

from gateway.state.open_requests import OpenRequests


def test_they_are_counted() -> None:
    requests = OpenRequests()
    requests.begin()
    requests.begin()
    requests.end()
    assert requests.open == 1


def test_a_stop_is_announced_before_new_work_is_refused() -> None:
    requests = OpenRequests()
    assert (requests.closing, requests.draining, requests.kept) == (False, False, frozenset())
    requests.announce_stop()
    assert (requests.closing, requests.draining) == (True, False)
    kept = frozenset({("10.0.0.1", 4711)})
    requests.drain(kept)
    assert (requests.draining, requests.kept) == (True, kept)
