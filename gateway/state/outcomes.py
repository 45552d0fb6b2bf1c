"""What is learned of an engine from its health check and from the attempts that are made at it."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from gateway.policy.fail.breaker import Outcome, Phase
from gateway.policy.fail.retry import Failure, blame, is_ambiguous
from gateway.policy.fail.suspicion import Suspicion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.policy.fail.breaker import Rules
    from gateway.state.engine_record import EngineRecord

log = logging.getLogger(__name__)

# An engine that says it takes no more work is left alone this long, and again after so many trials, until it
# answers one: else all who wait would be sent there each time, and the retry budget would be theirs.
_REST_S = 1.0
_TRIALS = 4
# One that shuts down is left alone longer, and gets a single trial then: it comes back as another process,
# which shows by its having been down, or at another address.
_STOPPING_REST_S = 10.0
# One that refuses everything gets nothing for so long, unless another engine's answer tells sooner.
_DOUBT_REST_S = 5.0
# Engines first seen this soon after the start are the fleet as it stands, not newcomers to it.
_STARTING_S = 10.0


def record_health(record: EngineRecord, now: float, rules: Rules, *, up: bool, uptime_s: float) -> None:
    """Take over that an engine has begun to answer its health check, or has ceased to.

    Args:
        record: the engine's.
        now: the time.
        rules: the breaker's.
        up: it answers.
        uptime_s: for how long the gateway has run.
    """
    if up and (record.answers is False or uptime_s > _STARTING_S):
        record.breaker = record.breaker.revived(now, rules)
        record.end_rest()
        record.suspicion = Suspicion()
        record.back_since = now
    record.answers = up


def record_refusal(record: EngineRecord, failure: Failure, now: float) -> None:
    """Take over that an engine turned a request away, if that is how it failed."""
    if failure is Failure.BUSY:
        record.refuse(now, _REST_S, _TRIALS)
    elif failure is Failure.STOPPING:
        if record.refused_at is None:
            log.info("engine %s shuts down", record.engine.name)
        record.refuse(now, _STOPPING_REST_S, trials=1)


def judge(
    failure: Failure,
    record: EngineRecord,
    peers: Iterable[EngineRecord],
    client: str,
    now: float,
    rules: Rules,
) -> tuple[Failure, Outcome]:
    """Return how an attempt failed in the light of what else is known, and what that says of its engine.

    One that answers 500 again and again, while others succeed at the like, was not just given bad requests.

    Args:
        failure: what went wrong.
        record: the engine's.
        peers: of the engines that the request's route may use.
        client: whose request it was.
        now: the time.
        rules: the breaker's.
    """
    if not is_ambiguous(failure):
        return failure, blame(failure)
    suspicion = record.suspicion = record.suspicion.after_refusal(client, now)
    peers_succeeded_at = max((peer.succeeded_at for peer in peers if peer is not record), default=-math.inf)
    if suspicion.is_engines(rules.failures, peers_succeeded_at):
        return Failure.REFUSED, blame(Failure.REFUSED)
    if suspicion.must_rest and record.refused_at is None:
        record.refuse(now, _DOUBT_REST_S, trials=1)
    others_agree = record.answers is False or peers_succeeded_at > suspicion.since
    return failure, blame(failure, others_agree=others_agree)


def record_opinion(record: EngineRecord, *, other_answered: bool) -> None:
    """Take over whether another engine has answered what this one refused."""
    if record.suspicion.must_rest:
        record.end_rest()
    record.suspicion = record.suspicion.heard(other_answered=other_answered)


def record_outcome(record: EngineRecord, outcome: Outcome, now: float, rules: Rules, *, begun: float) -> bool:
    """Take over what a request says of its engine; tell whether that may change what the engine is given.

    Args:
        record: the engine's.
        outcome: what the request says.
        now: the time.
        rules: the breaker's.
        begun: when the request was sent.
    """
    ends_rest = outcome is Outcome.SUCCESS and record.record_success(now, begun)
    before = record.breaker.at(now, rules)
    after = record.breaker = before.after(outcome, now, rules, begun=begun)
    if after is before or after == before:
        return ends_rest
    if after.phase is not before.phase:
        log.warning("the breaker of engine %s is %s", record.engine.name, after.phase.name.lower())
        if before.phase is Phase.HALF_OPEN and after.phase is Phase.CLOSED:
            record.back_since = now  # its probes went well: the crowd may come, but not all at once
    return True
