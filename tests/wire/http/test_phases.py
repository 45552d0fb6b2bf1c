"""Which moves there are, and that there are no others."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from gateway.wire.http.phases import (
    COMPLETE,
    CONNECTION,
    DEAF,
    ENDED,
    INCOMPLETE,
    REQUEST,
    UNANSWERED,
    ConnectionEvent,
    ConnectionPhase,
    RequestEvent,
    RequestPhase,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import IntEnum

TABLES = pytest.mark.parametrize(
    ("table", "phases", "events"),
    [(CONNECTION, ConnectionPhase, ConnectionEvent), (REQUEST, RequestPhase, RequestEvent)],
    ids=["connection", "request"],
)


def after(table: Mapping[Any, Any], start: IntEnum, told: str) -> list[str]:
    """The names of the phases that events lead through."""
    events = ConnectionEvent if isinstance(start, ConnectionPhase) else RequestEvent
    phases = [start]
    for name in told.split():
        phases.append(table[phases[-1], events[name]])
    return [phase.name for phase in phases[1:]]


@pytest.mark.parametrize(
    ("events", "phases"),
    [
        ("BYTES HEAD_ENDS ANSWERED READ BYTES", "HEAD EXCHANGE UNREAD IDLE HEAD"),
        ("BYTES HEAD_ENDS ANSWERED BYTES", "HEAD EXCHANGE UNREAD HEAD"),
        ("BYTES LINGER LOST", "HEAD LINGERING CLOSED"),
        ("BYTES HEAD_ENDS FAULT LINGER LOST LOST", "HEAD EXCHANGE LAST_ANSWER LINGERING CLOSED CLOSED"),
        ("BYTES HEAD_ENDS CLOSE LOST", "HEAD EXCHANGE CLOSING CLOSED"),
        ("LINGER", "LINGERING"),
        ("CLOSE", "CLOSING"),
    ],
)
def test_a_connection_goes_from_phase_to_phase(events: str, phases: str) -> None:
    assert after(CONNECTION, ConnectionPhase.IDLE, events) == phases.split()


@pytest.mark.parametrize(
    ("events", "phases"),
    [
        ("BODY_ENDS ANSWER_BEGINS ANSWER_ENDS CLIENT_LEAVES", "RECEIVED ANSWERING ANSWERED ANSWERED"),
        (
            "ANSWER_BEGINS ANSWER_ENDS CLIENT_LEAVES",
            "ANSWERING_EARLY ANSWERED_EARLY ANSWERED_EARLY",
        ),
        ("ANSWER_BEGINS BODY_ENDS ANSWER_ENDS", "ANSWERING_EARLY ANSWERING ANSWERED"),
        ("BODY_FAILS ANSWER_BEGINS ANSWER_ENDS", "FAULTY ANSWERING_EARLY ANSWERED_EARLY"),
        ("ANSWER_BEGINS BODY_FAILS ANSWER_ENDS", "ANSWERING_EARLY ANSWERING_EARLY ANSWERED_EARLY"),
        ("CLIENT_LEAVES ANSWER_BEGINS CLIENT_LEAVES", "LEFT LEFT LEFT"),
        ("BODY_ENDS ANSWER_BEGINS CLIENT_LEAVES", "RECEIVED ANSWERING LEFT"),
    ],
)
def test_a_request_goes_from_phase_to_phase(events: str, phases: str) -> None:
    assert after(REQUEST, RequestPhase.RECEIVING, events) == phases.split()


@pytest.mark.parametrize(
    ("start", "events"),
    [
        (ConnectionPhase.IDLE, "ANSWERED"),  # an answer to nothing
        (ConnectionPhase.HEAD, "ANSWERED"),
        (ConnectionPhase.EXCHANGE, "HEAD_ENDS"),  # a request behind an unfinished one
        (ConnectionPhase.LAST_ANSWER, "ANSWERED"),  # after which there would be another
        (ConnectionPhase.LAST_ANSWER, "HEAD_ENDS"),
        (ConnectionPhase.LINGERING, "BYTES"),
        (ConnectionPhase.CLOSING, "LINGER"),
        (ConnectionPhase.CLOSED, "BYTES"),
    ],
)
def test_a_connection_makes_no_other_move(start: ConnectionPhase, events: str) -> None:
    with pytest.raises(KeyError):
        after(CONNECTION, start, events)


@pytest.mark.parametrize(
    ("start", "events"),
    [
        (RequestPhase.RECEIVING, "ANSWER_ENDS"),  # an answer without a beginning
        (RequestPhase.RECEIVED, "BODY_ENDS"),
        (RequestPhase.RECEIVED, "BODY_FAILS"),
        (RequestPhase.ANSWERING, "ANSWER_BEGINS"),  # two answers
        (RequestPhase.ANSWERED, "ANSWER_ENDS"),
        (RequestPhase.ANSWERED_EARLY, "BODY_ENDS"),
        (RequestPhase.FAULTY, "BODY_ENDS"),
        (RequestPhase.LEFT, "ANSWER_ENDS"),
    ],
)
def test_a_request_makes_no_other_move(start: RequestPhase, events: str) -> None:
    with pytest.raises(KeyError):
        after(REQUEST, start, events)


@TABLES
def test_every_phase_is_reached_and_every_event_happens(
    table: Mapping[Any, Any], phases: type[IntEnum], events: type[IntEnum]
) -> None:
    reached, left = {phases(1)}, [phases(1)]
    while left:
        phase = left.pop()
        for event in events:
            if (found := table.get((phase, event))) and found not in reached:
                reached.add(found)
                left.append(found)
    assert reached == set(phases)
    assert {event for _, event in table} == set(events)


def test_no_phase_is_left_for_one_that_takes_more() -> None:
    for (before, _), then in CONNECTION.items():
        if before in DEAF:
            assert then in DEAF, (before, then)
        if before in ENDED:
            assert then in ENDED, (before, then)
    for (start, _), end in REQUEST.items():
        if start in COMPLETE:
            assert end is start
        if start not in UNANSWERED:
            assert end not in UNANSWERED, (start, end)
        if start not in INCOMPLETE:
            assert end not in INCOMPLETE or start is RequestPhase.FAULTY, (start, end)


def test_a_connection_can_be_lost_and_a_client_leave_at_any_time() -> None:
    for phase in ConnectionPhase:
        assert CONNECTION[phase, ConnectionEvent.LOST] is ConnectionPhase.CLOSED
    for phase, event in itertools.product(RequestPhase, [RequestEvent.CLIENT_LEAVES]):
        assert REQUEST[phase, event] is (phase if phase in COMPLETE else RequestPhase.LEFT)
