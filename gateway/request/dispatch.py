"""The path of one request, top to bottom: receive, sort, admit and choose, forward, account."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.errors import BadRequest, ClientLeft, GatewayError, Unavailable, UnknownModel
from gateway.model import Decision
from gateway.policy.admit import admission
from gateway.policy.admit.admission import Refusal, Shed
from gateway.policy.choose.balance import Fitness
from gateway.policy.fail import retry
from gateway.policy.sort import evidence
from gateway.request.attempt import RETRY_AFTER_S, AttemptFailed, Job, Outturn, attempt
from gateway.request.receive import Taken
from gateway.state.body_memory import FULL
from gateway.state.lease import Lease
from gateway.telemetry.logs import Line
from gateway.wire import openai, responses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from gateway.config import Config, Queue
    from gateway.images.inspector import ImageInspector
    from gateway.model import SortDecision, SortFacts
    from gateway.request.attempt import Reply
    from gateway.request.receive import Intake
    from gateway.state.body_memory import MemoryClaim
    from gateway.state.fleet import Fleet
    from gateway.state.queues import Waiter
    from gateway.state.quotas import QuotaUse
    from gateway.state.store import State
    from gateway.telemetry.metrics import Metrics, Stage
    from gateway.telemetry.tracing import Trace, Tracing
    from gateway.upstream.client import EngineClient

_LINE = Line(logging.getLogger("gateway.access"), "request")

CLIENT_LEFT = 499

_RESPONSES = "/v1/responses"

# To read a larger body takes longer than the event loop may be kept: 1 ms for 8 MB, 5 ms for 32 MB.
_INLINE_BYTES = 8 * 1024 * 1024

# Who is refused on arrival has stood in the queue for some microseconds.
_WAITED_S = 0.001

_UNTRACED = nullcontext()
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


@dataclass(slots=True)
class Call:
    """One request and what is known of it so far; its headers, log line and metrics are made of this.

    Attributes:
        path: the endpoint, on the gateway as on the engine.
        request_id: the client's own or a new one.
        read: returns the body of at most so many bytes, counted as held while it comes, or raises
            BodyTooLarge, Unavailable or ClientLeft.
        route_header: the `x-ocr-route` header.
        content_type: the request's content type.
        kept: it came on a connection whose requests are taken even while the gateway drains.
        key: the name of the client's API key; empty where there are none.
        client: what shares are counted by: the key's name, else the address the request came from.
        context: its W3C trace context, as headers; empty where it has none.
        held: what of it is in memory.
        visit: what books it on the key's limits.
        image_bytes: of its images, decoded.
        started: when it arrived, by time.perf_counter.
        decision: its route, and why; one that is known beforehand stands.
        lease: the place it has or had on an engine; the last one where it was tried again.
        outturn: what the answer told.
        waited_s: seconds in the queue, all attempts together.
        retried: how an earlier attempt failed, where there was one.
        code: the status it ended with; 499 where the client left.
        error: the code of the error that it got, where it got one.
        trace: its spans; None where it is not traced.
    """

    path: str
    request_id: str
    read: Callable[[int, MemoryClaim], Awaitable[bytes]]
    route_header: str | None = None
    content_type: str = ""
    kept: bool = False
    key: str = ""
    client: str = ""
    held: MemoryClaim = field(init=False)
    visit: QuotaUse | None = None
    image_bytes: int = 0
    context: Mapping[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    decision: SortDecision | None = None
    lease: Lease | None = None
    outturn: Outturn = field(default_factory=Outturn)
    waited_s: float = 0.0
    retried: str = ""
    code: int = 0
    error: str = ""
    trace: Trace | None = None

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Return a block to run a stage in, which has a span where the request is traced."""
        return self.trace.stage(name) if self.trace else _UNTRACED

    def headers(self) -> dict[str, str]:
        """Return the headers that tell the client what is known by now."""
        known = {"x-request-id": self.request_id}
        if self.visit:
            known |= self.visit.headers()
        if self.decision:
            known |= {"x-ocr-route": self.decision.route, "x-ocr-route-reason": self.decision.reason}
        if self.lease:
            known |= {"x-ocr-pool": self.lease.engine.pool, "x-ocr-depth": str(self.lease.depth)}
        return known


class Dispatcher:
    """Takes requests along the path; holds no state of its own."""

    def __init__(
        self,
        state: State,
        client: EngineClient,
        metrics: Metrics,
        vision: ImageInspector,
        intake: Intake,
        tracing: Tracing | None = None,
    ) -> None:
        self._state = state
        self._client = client
        self._metrics = metrics
        self._vision = vision
        self._intake = intake
        self._tracing = tracing

    async def dispatch(self, call: Call, answer: Callable[[Reply], Awaitable[None]]) -> None:
        """Answer one request.

        Args:
            call: the request.
            answer: sends the answer to the client; the engine is occupied until it is done.

        Raises:
            GatewayError: the request gets no answer.
            ClientLeft: there is nobody to answer.
        """
        fleet = self._state.fleet
        self._state.requests.begin()
        call.held = self._state.memory.claim(call.client)
        visit = call.visit = self._state.quotas.open_use(call.key)
        if self._tracing:
            call.trace, call.context = self._tracing.begin(call.path, fleet.config.model, call.context)
        try:
            refuse_draining(self._state, self._metrics, call)
            visit.admit()
            with call.stage("receive"):
                request, taken = await self._receive(call, fleet)
                visit.add_image_bytes(call.image_bytes)
            with call.stage("sort"):
                route = await self._sort(call, request.facts, taken, fleet)
            job = self._job(call, request, taken.repaired, fleet.config, route)
            # A request holds its body once, and nothing beside it while an engine works.
            del request, taken
            await self._answer(call, job, route, fleet.config.routes[route].queue, answer)
        except GatewayError as error:
            call.code, call.error = error.status, error.code or ""
            if error.code == FULL:
                self._metrics.shed(call.decision.route if call.decision else "", FULL)
            raise
        except (ClientLeft, asyncio.CancelledError):
            if not call.outturn.ended:  # who leaves with all of the answer has had it
                call.code, call.error = CLIENT_LEFT, "client_left"
            raise
        except BaseException:
            call.code, call.error = 500, "internal_error"
            raise
        finally:
            self._state.requests.end()
            call.held.close()
            visit.release()
            self._account(call)

    async def _receive(self, call: Call, fleet: Fleet) -> tuple[openai.CompletionRequest, Taken]:
        """Return the request and what is known of its images."""
        if call.content_type.partition(";")[0].strip().lower() != "application/json":
            raise BadRequest(
                "the content type must be application/json", param="content-type", code="bad_content_type"
            )
        limits = fleet.config.limits
        body = await call.read(limits.body_bytes, call.held)
        with self._timed("receive"):
            most = limits.images_per_request
            if call.path == _RESPONSES:
                parse = partial(responses.parse_request, body, max_images=most)
            else:
                is_chat = call.path.endswith("/chat/completions")
                parse = partial(openai.parse_request, body, chat=is_chat, max_images=most)
            request = parse() if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse)
            alias = alias_of(request.model, fleet.config.model)
            if alias is not None or call.route_header is not None:
                request.facts = replace(request.facts, header=call.route_header, alias=alias)
            taken = Taken(request.images, limits, call.client, call.held.add)
            await self._intake.look(taken)
        if taken.remote:
            with self._timed("fetch"), call.stage("fetch"):
                await self._intake.fetch(taken, limits.body_bytes - len(body))
        call.image_bytes = taken.encoded_bytes
        # The parts may hold copies of the images' text; from here on the body alone does.
        taken.parts, taken.remote, request.images = (), {}, ()
        return request, taken

    async def _sort(self, call: Call, facts: SortFacts, taken: Taken, fleet: Fleet) -> str:
        rules = fleet.sorting
        with self._timed("sort"):
            decision = call.decision or evidence.sort(facts, rules)
            if decision is None and taken.first is not None:
                guess = await self._vision.guess(taken.first, weight=taken.first_weight, client=call.client)
                decision = evidence.sort_by_layout(guess, rules) if guess else None
            call.decision = decision or evidence.by_default(rules)
        self._metrics.sorted(call.decision)
        return call.decision.route

    def _job(
        self,
        call: Call,
        request: openai.CompletionRequest,
        repaired: dict[bytes, bytes],
        config: Config,
        route: str,
    ) -> Job:
        with self._timed("forward"):
            alias = config.model if request.facts.alias is not None else None
            return Job(
                path=call.path,
                request_id=call.request_id,
                body=openai.rewritten(request, model=alias, repaired=repaired),
                held=call.held,
                answer_bytes=config.limits.answer_bytes,
                stream=request.stream,
                strip_usage=not request.include_usage,
                merged=request.merged,
                timeouts=config.routes[route].timeouts,
                dialect=responses.RESPONSES if call.path == _RESPONSES else openai.COMPLETIONS,
                context=call.context,
                trace=call.trace,
            )

    async def _answer(
        self, call: Call, job: Job, route: str, queue: Queue, answer: Callable[[Reply], Awaitable[None]]
    ) -> None:
        """Have a job answered, by another engine where the first failed before its first byte."""

        async def deliver(reply: Reply) -> None:
            call.code = reply.status
            with call.stage("answer"):
                await answer(reply)
            call.code = call.outturn.failed or call.code

        state, now = self._state, asyncio.get_running_loop().time
        state.retries.count_request()
        deadline = 0.0
        failed: AttemptFailed | None = None
        attempts = 0
        asked: set[str] = set()
        while True:
            with await self._admit(call, route, queue, deadline, failed) as lease:
                call.lease = lease
                self._metrics.chosen(route, lease.depth)
                if failed:
                    self._metrics.retried(route, failed.failure)
                    call.retried = failed.failure
                else:
                    deadline = now() + job.timeouts.total_s
                try:
                    await attempt(self._client, job, lease, call.outturn, deadline, deliver)
                    return
                except AttemptFailed as error:
                    failed = error
                    # Each engine may turn it away unseen once: where all do, it must not go round and round.
                    attempts += retry.was_seen(failed.failure) or lease.engine.name in asked
                    asked.add(lease.engine.name)
                    state.record_failure(lease, failed.failure)
            left = deadline - now()
            elsewhere = state.choose(route, lease.engine.name).reason is not Fitness.DOWN
            if not elsewhere or not state.retries.may_retry(
                failed.failure, attempts=attempts, seconds_left=left
            ):
                raise failed.error

    async def _admit(
        self, call: Call, route: str, queue: Queue, deadline: float, failed: AttemptFailed | None
    ) -> Lease:
        """Take a place on an engine, waiting for one if need be; `failed` is how an earlier attempt ended."""
        state, now = self._state, asyncio.get_running_loop().time
        avoid = call.lease.engine.name if failed and call.lease else None
        with self._timed("choose"), call.stage("choose"):
            taken = state.take(route, avoid, call.client)
        if isinstance(taken, Lease):
            return taken
        if taken.reason is Fitness.DOWN:
            raise failed.error if failed else self._shed(route, queue, _NO_ENGINE)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = state.wait(
            route,
            lambda: None if turn.done() else turn.set_result(None),
            avoid,
            client=call.client,
            first=failed is not None,
        )
        started = now()
        try:
            # One that has been taken in is not refused again.
            if not turn.done() and failed is None and (refused := self._refusal(waiter, queue)):
                raise self._shed(route, queue, refused)
            with call.stage("queue"):
                async with asyncio.timeout_at(min(started + queue.max_wait_s, deadline or math.inf)):
                    await turn
        except TimeoutError:
            pass
        except BaseException:
            if waiter.lease:
                waiter.lease.release()
            raise
        finally:
            call.waited_s += now() - started
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
        """Whether who has just joined a queue had better not wait; where it may, another may have to go."""
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

    def _account(self, call: Call) -> None:
        seconds = time.perf_counter() - call.started
        route = call.decision.route if call.decision else ""
        engine = call.lease.engine if call.lease else None
        usage, first_token_at = call.outturn.usage, call.outturn.first_token_at
        first_token_s = first_token_at - call.started if first_token_at else None
        self._metrics.finished(
            route=route,
            pool=engine.pool if engine else "",
            code=call.code,
            seconds=seconds,
            waited_s=call.waited_s if engine or call.waited_s else None,
            first_token_s=first_token_s,
            usage=usage,
        )
        self._state.quotas.count_request(call.key, call.code, call.image_bytes)
        if usage and call.code == 200:
            self._state.record_answer(route, usage.completion_tokens)
        sample = call.lease.trusted_sample() if call.lease else None
        length = sample.speculation.length if sample else None
        error = call.error or call.outturn.error
        if call.decision:
            decision = Decision(
                at=time.time(),
                request_id=call.request_id,
                route=route,
                reason=call.decision.reason,
                pool=engine.pool if engine else None,
                engine=engine.name if engine else None,
                depth=call.lease.depth if call.lease else None,
                code=call.code,
                seconds=seconds,
                waited_s=call.waited_s,
                acceptance_length=length,
                completion_tokens=usage.completion_tokens if usage else None,
                why=_why(call, error),
            )
            self._state.history.record_request(decision)
        fields: dict[str, Any] = {
            "request_id": call.request_id,
            "path": call.path,
            "code": call.code,
            "key": call.key,
            "route": route,
            "reason": call.decision.reason if call.decision else "",
            "pool": engine.pool if engine else "",
            "engine": engine.name if engine else "",
            "depth": call.lease.depth if call.lease else None,
            "seconds": round(seconds, 4),
            "waited": round(call.waited_s, 4) or None,
            "first_token": round(first_token_s, 4) if first_token_s else None,
            "completion_tokens": usage.completion_tokens if usage else None,
            "acceptance_length": round(length, 4) if length else None,
            "acceptance_source": sample.source if sample else None,
            "trace_id": call.trace.trace_id if call.trace else None,
        }
        if call.trace:
            spoken = sample.speculation if sample else None
            beside = {
                "error": error,
                "prompt_tokens": usage.prompt_tokens if usage else None,
                "drafts": spoken.drafts if spoken else None,
                "accepted": spoken.accepted if spoken else None,
            }
            call.trace.end(fields | beside)
        _LINE.write(fields)

    def _timed(self, stage: Stage) -> _Timed:
        return _Timed(self._metrics, stage)


class _Timed:
    """Notes what a stage took, unless it fails; a generator would take a request 8 us more."""

    __slots__ = "_metrics", "_stage", "_started"

    def __init__(self, metrics: Metrics, stage: Stage) -> None:
        self._metrics = metrics
        self._stage: Stage = stage

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._metrics.took(self._stage, time.perf_counter() - self._started)


def refuse_draining(state: State, metrics: Metrics, call: Call) -> None:
    """Take no new work once the gateway drains.

    Raises:
        Unavailable: it does.
    """
    if state.requests.draining and not call.kept:
        metrics.shed("", "shutting_down")
        raise Unavailable(
            "the gateway is shutting down; retry, and another takes the request",
            code="shutting_down",
            retry_after=1,
        )


def alias_of(model: str | None, name: str) -> str | None:
    """Return the route behind `NAME:route`; None for NAME itself.

    Raises:
        UnknownModel: it is neither.
    """
    if model is None or model == name:
        return None
    if model.startswith(f"{name}:"):
        return model.removeprefix(f"{name}:")
    raise UnknownModel(
        f"the model {model[:64]!r} does not exist here; use {name!r}, or {name}:ROUTE to choose a route",
        param="model",
        code="model_not_found",
    )


def _why(call: Call, error: str) -> str:
    """What a request's choice went by and what came between, or why there was none; how it failed."""
    words = [call.lease.chosen_by] if call.lease else []
    if call.waited_s >= _WAITED_S:
        words.append("waited")
    if call.retried:
        words.append(f"retried after {call.retried}")
    if error:
        words.append(error)
    return ", ".join(words)
