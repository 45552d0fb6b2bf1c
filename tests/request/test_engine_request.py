"""What of a request reaches an engine, and how its answer is to be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import parse
from gateway.model import SortFacts
from gateway.request.engine_request import EngineRequest
from gateway.request.receive import CheckedImages, ReceivedRequest
from gateway.request.record import IncomingRequest, RequestProgress
from gateway.state.requests import BodyMemory
from gateway.wire import openai, responses

if TYPE_CHECKING:
    from gateway.state.requests import MemoryClaim

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
CONFIG = parse(
    """
model: m
pools: {p: {engines: [http://e]}}
routes: {text: {}, table: {timeouts: {total_s: 7}}}
limits: {answer_bytes: 1234}
""",
    "f",
    Path(),
    {},
)
BODY = (b"{", b"}")


async def read(limit: int, held: MemoryClaim) -> bytes:
    return b""


def sent(path: str = CHAT, route: str = "text") -> EngineRequest:
    progress = RequestProgress(IncomingRequest(path, "id", 0.0, read, context={"traceparent": "t"}))
    progress.held = BodyMemory(10**6).claim("")
    progress.held.add(sum(map(len, BODY)))
    received = ReceivedRequest(
        SortFacts(), CheckedImages(None, 0), BODY, stream=True, strip_usage=False, merged=True
    )
    return EngineRequest.of(received, progress, CONFIG, route)


def test_an_engine_gets_what_was_received_and_the_routes_time() -> None:
    request = sent(route="table")
    assert (request.path, request.request_id, request.context) == (CHAT, "id", {"traceparent": "t"})
    assert (request.body, request.stream, request.strip_usage, request.merged) == (BODY, True, False, True)
    assert (request.timeouts.total_s, request.answer_bytes) == (7, 1234)


def test_each_endpoint_has_its_dialect() -> None:
    assert sent().dialect is openai.COMPLETIONS
    assert sent("/v1/completions").dialect is openai.COMPLETIONS
    assert sent(RESPONSES).dialect is responses.RESPONSES


def test_a_body_that_will_not_be_sent_again_is_held_no_more() -> None:
    request = sent()
    assert request.held.size == sum(map(len, BODY))
    request.drop_body()
    assert (request.body, request.held.size) == ((), 0)
