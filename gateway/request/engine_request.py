"""Forward: a request as an engine gets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.request.receive import RESPONSES_PATH
from gateway.wire import openai, responses

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from gateway.config import Config, Timeouts
    from gateway.model import Buffer
    from gateway.request.receive import ReceivedRequest
    from gateway.request.record import RequestProgress
    from gateway.state.requests import MemoryClaim
    from gateway.telemetry.tracing import Trace
    from gateway.wire.openai import Dialect


@dataclass(slots=True)
class EngineRequest:
    """What is sent to an engine, and to another where that one fails.

    Attributes:
        path: the endpoint, on the gateway as on the engine.
        request_id: goes along to the engine.
        body: as the engine gets it, in pieces; empty once it will not be sent again.
        held: the account of what the request holds in memory.
        answer_bytes: the most bytes of an answer that is not streamed.
        stream: a stream is asked for.
        strip_usage: see ReceivedRequest.
        merged: see ReceivedRequest.
        timeouts: the route's.
        dialect: how its answers are read.
        context: the trace context that goes along, as headers.
        trace: the request's spans; None where it is not traced.
    """

    path: str
    request_id: str
    body: tuple[Buffer, ...]
    held: MemoryClaim
    answer_bytes: int
    stream: bool
    strip_usage: bool
    merged: bool
    timeouts: Timeouts
    dialect: Dialect
    context: Mapping[str, str]
    trace: Trace | None

    @classmethod
    def of(cls, received: ReceivedRequest, progress: RequestProgress, config: Config, route: str) -> Self:
        """Return what is sent for a request that has been sorted into a route."""
        path = progress.incoming.path
        return cls(
            path=path,
            request_id=progress.incoming.request_id,
            body=received.body,
            held=progress.held,
            answer_bytes=config.limits.answer_bytes,
            stream=received.stream,
            strip_usage=received.strip_usage,
            merged=received.merged,
            timeouts=config.routes[route].timeouts,
            dialect=responses.RESPONSES if path == RESPONSES_PATH else openai.COMPLETIONS,
            context=progress.context,
            trace=progress.trace,
        )

    def drop_body(self) -> None:
        """Let go of the body: an answer to it has begun, which may take long."""
        self.held.release(sum(map(len, self.body)))
        self.body = ()
