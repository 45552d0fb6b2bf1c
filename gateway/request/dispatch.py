"""The path of one request, top to bottom: receive, sort, admit, choose, forward, account."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from gateway.errors import Unavailable
from gateway.policy.choose.balance import Fitness
from gateway.policy.fail import retry
from gateway.policy.sort import evidence
from gateway.request.admit import Admission, refuse_draining
from gateway.request.attempt import AttemptFailed, attempt
from gateway.request.receive import EngineRequest, Receiver
from gateway.request.record import Accounting
from gateway.state.lease import Lease
from gateway.state.requests import FULL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.config import Queue
    from gateway.images.fetch import ImageFetcher
    from gateway.images.inspector import ImageInspector
    from gateway.model import Buffer, SortDecision
    from gateway.policy.fail.retry import Failure
    from gateway.policy.sort.evidence import SortRules
    from gateway.request.attempt import GatewayResponse
    from gateway.request.receive import ReceivedRequest
    from gateway.request.record import RequestProgress
    from gateway.state.fleet import Fleet
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics
    from gateway.telemetry.tracing import Tracing
    from gateway.upstream.client import EngineClient


class Dispatcher:
    """Takes requests along the path; holds no state of its own."""

    def __init__(
        self,
        state: State,
        client: EngineClient,
        metrics: Metrics,
        vision: ImageInspector,
        fetcher: ImageFetcher,
        tracing: Tracing | None = None,
    ) -> None:
        self._state = state
        self._client = client
        self._metrics = metrics
        self._vision = vision
        self._tracing = tracing
        self._receiver = Receiver(vision, fetcher)
        self._admission = Admission(state, metrics)

    async def dispatch(
        self, progress: RequestProgress, answer: Callable[[GatewayResponse], Awaitable[None]]
    ) -> None:
        """Answer one request.

        Args:
            progress: the request; what becomes of it is noted there.
            answer: sends the answer to the client; the engine is occupied until it is done.

        Raises:
            GatewayError: the request gets no answer.
            ClientLeft: there is nobody to answer.
        """
        incoming, fleet = progress.incoming, self._state.fleet
        quota = progress.quota = self._state.quotas.open_use(incoming.key) if incoming.key else None
        if self._tracing:
            progress.begin_trace(*self._tracing.begin(incoming.path, fleet.config.model, incoming.context))
        with Accounting(self._state, self._metrics, progress):
            try:
                if self._state.requests.draining:
                    refuse_draining(self._state, self._metrics, incoming)
                if quota:
                    quota.admit()
                with progress.stage("receive"):
                    received = await self._receiver.receive(progress, fleet.config)
                    if quota:
                        quota.add_image_bytes(progress.image_bytes)
                with progress.stage("sort"):
                    route = await self._sort(progress, received, fleet)
                request = EngineRequest.of(received, progress, fleet.config, route)
                del received  # the body is let go of with the request
                await self._forward(progress, request, route, fleet.config.routes[route].queue, answer)
            except Unavailable as error:
                if error.code == FULL:
                    self._metrics.shed(progress.decision.route if progress.decision else "", FULL)
                raise

    async def _sort(self, progress: RequestProgress, received: ReceivedRequest, fleet: Fleet) -> str:
        """Give a request its route, unless it came with one."""
        started = time.perf_counter()
        decision = progress.decision = progress.decision or await sort(
            received, fleet.sorting, self._vision, progress.incoming.client
        )
        progress.overhead["sort"] = time.perf_counter() - started
        return decision.route

    async def _forward(
        self,
        progress: RequestProgress,
        request: EngineRequest,
        route: str,
        queue: Queue,
        answer: Callable[[GatewayResponse], Awaitable[None]],
    ) -> None:
        """Have a request answered, by another engine where one fails before its answer's first byte."""

        doubted: Lease | None = None  # of the engine whose refusal is put before another engine

        async def deliver(response: GatewayResponse) -> None:
            if doubted and response.status < 400:
                state.record_opinion(doubted, other_answered=True)
            progress.status = response.status
            with progress.stage("answer"):
                await answer(response)

        state, now = self._state, asyncio.get_running_loop().time
        state.retries.requests += 1
        deadline = 0.0
        failed: AttemptFailed | None = None
        failure: Failure | None = None  # how that is judged
        lease: Lease | None = None
        attempts = 0
        asked: set[str] = set()
        while True:
            client, avoid = progress.incoming.client, lease.engine.name if failed and lease else None
            with progress.stage("choose"):
                started = time.perf_counter()
                taken = state.take(route, avoid, client)
                progress.overhead["choose"] = time.perf_counter() - started
            lease = (
                taken
                if isinstance(taken, Lease)
                else await self._admission.wait(progress, route, queue, deadline, failed, taken.reason)
            )
            try:
                if failure:
                    progress.retried += (failure,)
                else:
                    deadline = now() + request.timeouts.total_s
                outcome = progress.begin_attempt(lease)
                await attempt(self._client, request, lease, outcome, deadline, deliver)
                return
            except AttemptFailed as error:
                failed = error
                # Each engine may turn it away unseen once: where all do, it must not go round and round.
                attempts += retry.was_seen(failed.failure) or lease.engine.name in asked
                asked.add(lease.engine.name)
                failure = state.record_failure(lease, failed.failure, failed.told)
            finally:
                if lease.held:
                    lease.release()
                if doubted:
                    state.record_opinion(doubted, other_answered=False)
            left = deadline - now()
            if doubted or not retry.is_ambiguous(failure):
                doubted = None
                elsewhere = state.choose(route, lease.engine.name).reason is not Fitness.DOWN
                again = elsewhere and state.retries.may_retry(failure, attempts=attempts, seconds_left=left)
            else:
                again = state.retries.within_limits(attempts, left) and state.ask_another(lease)
                doubted = lease if again else None
            if again:
                continue
            if failed.response is None:
                raise failed.error
            await deliver(failed.response)
            return


async def sort(
    received: ReceivedRequest, rules: SortRules, vision: ImageInspector, client: str
) -> SortDecision:
    """Return a request's route; its first image is looked at only where nothing cheaper decides.

    Args:
        received: the request.
        rules: by which requests are sorted.
        vision: looks at images.
        client: whose the image is: clients take turns at being looked at.

    Raises:
        BadRequest: it names a route that there is not.
    """
    decision = evidence.sort(received.facts, rules)
    first = received.images.first
    if decision is None and first is not None:
        decision = await sort_by_image(first, received.images.first_weight, rules, vision, client)
    return decision or evidence.by_default(rules)


async def sort_by_image(
    url: Buffer, weight: int, rules: SortRules, vision: ImageInspector, client: str
) -> SortDecision | None:
    """Return the route that an image looks like; None where that cannot be told in time.

    Args:
        url: its data URL.
        weight: bytes of memory that decoding it takes.
        rules: by which requests are sorted.
        vision: looks at images.
        client: whose it is.
    """
    guess = await vision.guess(url, weight=weight, client=client)
    return evidence.sort_by_layout(guess, rules) if guess else None
