"""What one engine's record says of the requests it is to get."""

from __future__ import annotations

from gateway.policy.fail.suspicion import Suspicion
from gateway.state.engine_record import EngineRecord
from tests.state.world import PLAIN


def record(**known: object) -> EngineRecord:
    found = EngineRecord(PLAIN, lambda *_: True)
    for name, value in known.items():
        setattr(found, name, value)
    return found


def test_a_refusing_engine_rests_again_after_each_round_of_trials() -> None:
    it = record()
    it.count_trial(99.0)
    it.refuse(100.0, rest_s=10.0, trials=2)
    assert it.rests_until == 110.0
    it.count_trial(111.0)
    assert it.rests_until == 110.0
    it.count_trial(112.0)
    assert it.rests_until == 122.0
    it.count_trial(123.0)
    assert it.rests_until == 122.0


def test_a_success_ends_the_rest_where_it_was_sent_after_the_refusal() -> None:
    it = record(suspicion=Suspicion().after_refusal("a client", 90.0))
    it.refuse(100.0, rest_s=10.0, trials=2)
    assert not it.record_success(105.0, begun=99.0)
    assert (it.succeeded_at, it.suspicion, it.rests_until) == (105.0, Suspicion(), 110.0)
    assert it.record_success(106.0, begun=101.0)
    assert it.rests_until < 0
    assert not it.record_success(107.0, begun=102.0)
