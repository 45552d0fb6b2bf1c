"""Admit: a request that finds no free place on an engine waits for one in its route's queue, or is shed."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from gateway.errors import Unavailable
from gateway.policy.admit import admission
from gateway.policy.admit.admission import Refusal, Shed
from gateway.policy.choose.balance import Fitness
from gateway.request.stream import RETRY_AFTER_S

if TYPE_CHECKING:
    from gateway.config import Queue
    from gateway.request.attempt import AttemptFailed
    from gateway.request.record import IncomingRequest, RequestProgress
    from gateway.state.lease import Lease
    from gateway.state.queues import Waiter
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics

_NO_ENGINE = Refusal(Shed.NO_ENGINE, RETRY_AFTER_S)
# Why a request gets no place on an engine: the error's code, and what would be right.
_SHED = {
    Shed.NO_ENGINE: ("no_engine", "no engine of route {route!r} is up; retry shortly"),
    Shed.QUEUE_FULL: (
        "queue_full",
        "{queue.max_waiting} requests of route {route!r} wait already (routes.*.queue.max_waiting)",
    ),
    Shed.TOO_SLOW: (
        "queue_too_slow",
        "the queue of route {route!r} is too slow to take this within {queue.max_wait_s:g} s "
        "(routes.*.queue.max_wait_s)",
    ),
    Shed.TIMED_OUT: (
        "queue_timeout",
        "no engine of route {route!r} had room for {queue.max_wait_s:g} s (routes.*.queue.max_wait_s)",
    ),
}


class Admission:
    """Has requests wait for a place on an engine, or sheds them; holds no state of its own."""

    def __init__(self, state: State, metrics: Metrics) -> None:
        self._state = state
        self._metrics = metrics

    async def wait(
        self,
        progress: RequestProgress,
        route: str,
        queue: Queue,
        deadline: float,
        failed: AttemptFailed | None,
        reason: Fitness,
    ) -> Lease:
        """Return a place on an engine for a request that cannot have one at once, as soon as there is one.

        Args:
            progress: the request.
            route: its route.
            queue: the limits of that route's queue.
            deadline: when its answer must be complete, on the event loop's clock; 0 where that is not known.
            failed: how its last attempt ended, whose engine is avoided; None for its first.
            reason: why it cannot have a place at once.

        Raises:
            Unavailable: it is shed.
            GatewayError: as the last attempt; there is no place for another one.
        """
        if reason is Fitness.DOWN:
            raise failed.error if failed else self._shed(route, queue, _NO_ENGINE)
        state, now = self._state, asyncio.get_running_loop().time
        avoid = progress.lease.engine.name if failed and progress.lease else None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = state.wait(
            route,
            lambda: None if turn.done() else turn.set_result(None),
            avoid,
            client=progress.incoming.client,
            first=failed is not None,
        )
        started = now()
        try:
            # A retry is not refused on arrival: its request was admitted once.
            if not turn.done() and failed is None and (refused := self._refusal(waiter, queue)):
                raise self._shed(route, queue, refused)
            with progress.stage("queue"):
                async with asyncio.timeout_at(min(started + queue.max_wait_s, deadline or math.inf)):
                    await turn
        except TimeoutError:
            pass
        except BaseException:
            if waiter.lease:
                waiter.lease.release()
            raise
        finally:
            progress.waited_s += now() - started
            state.leave(waiter)
        if waiter.lease:
            return waiter.lease
        if failed:
            raise failed.error
        if not (turn.cancelled() or waiter.pushed_out):  # woken because its route is configured no more
            raise self._shed(route, queue, _NO_ENGINE)
        refused = admission.put_out(
            Shed.QUEUE_FULL if waiter.pushed_out else Shed.TIMED_OUT,
            waiting=state.queues.waiting(route),
            max_waiting=queue.max_waiting,
            max_wait_s=queue.max_wait_s,
            per_s=state.queues.speed(route),
        )
        raise self._shed(route, queue, refused)

    def _refusal(self, waiter: Waiter, queue: Queue) -> Refusal | None:
        """Why a request that has just joined a queue is refused; where it is not, it may push another out."""
        queues, route = self._state.queues, waiter.route
        waiting = queues.waiting(route) - 1
        full = waiting >= queue.max_waiting > 0
        goes = queues.pushed_out(waiter) if full else None
        refused = admission.refusal(
            waiting=waiting,
            max_waiting=queue.max_waiting,
            max_wait_s=queue.max_wait_s,
            per_s=queues.speed(route),
            ahead=queues.ahead(waiter),
            makes_room=goes is not None,
        )
        if goes and not refused:
            queues.push_out(goes)
        return refused

    def _shed(self, route: str, queue: Queue, refused: Refusal) -> Unavailable:
        code, message = _SHED[refused.reason]
        self._metrics.shed(route, code)
        return Unavailable(
            message.format(route=route, queue=queue), code=code, retry_after=refused.retry_after
        )


def refuse_draining(state: State, metrics: Metrics, incoming: IncomingRequest) -> None:
    """Take no new work once the gateway drains.

    Raises:
        Unavailable: it does.
    """
    if state.requests.draining and not incoming.may_come_late:
        metrics.shed("", "shutting_down")
        raise Unavailable(
            "the gateway is shutting down; retry, and another takes the request",
            code="shutting_down",
            retry_after=1,
        )
