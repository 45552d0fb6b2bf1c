"""What of a request reaches an engine, and how its answer is to be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.config import parse
from gateway.request.engine_request import EngineRequest
from gateway.request.progress import IncomingRequest, RequestProgress
from gateway.request.receive import CheckedImages, ReceivedRequest
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
NOTHING = CheckedImages(None, 0, 0, {})


async def read(limit: int, held: MemoryClaim) -> bytes:
    return b""


def sent(path: str = CHAT, alias: str | None = None, route: str = "text", **members: Any) -> EngineRequest:
    body: dict[str, Any] = {"model": "m:table" if alias else "m", "user": "u", **members}
    if path == RESPONSES:
        completion = responses.parse_request(json.dumps({"input": "x", **body}).encode(), max_images=1)
    else:
        body = {"messages": [{"role": "user", "content": "x"}], **body}
        completion = openai.parse_request(json.dumps(body).encode(), chat=True, max_images=1)
    progress = RequestProgress(IncomingRequest(path, "id", read, context={"traceparent": "t"}))
    progress.held = BodyMemory(10**6).claim("")
    progress.held.add(len(completion.body))
    received = ReceivedRequest(completion, replace(completion.facts, alias=alias), NOTHING)
    return EngineRequest.of(received, progress, CONFIG, route)


def test_an_engine_gets_the_clients_bytes_the_configured_model_and_the_routes_time() -> None:
    request = sent(route="table")
    assert (
        b"".join(request.body)
        == json.dumps({"messages": [{"role": "user", "content": "x"}], "model": "m", "user": "u"}).encode()
    )
    assert json.loads(b"".join(sent(alias="table").body))["model"] == "m"
    assert (request.path, request.request_id, request.context) == (CHAT, "id", {"traceparent": "t"})
    assert (request.timeouts.total_s, request.answer_bytes) == (7, 1234)


@pytest.mark.parametrize(
    ("members", "stream", "strip", "merged"),
    [
        ({}, False, True, False),
        ({"stream": True}, True, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, False, False),
        ({"stream": True, "stream_interval": 4}, True, True, True),
    ],
)
def test_usage_is_stripped_where_the_client_did_not_ask_for_it(
    members: dict[str, Any], stream: bool, strip: bool, merged: bool
) -> None:
    request = sent(**members)
    assert (request.stream, request.strip_usage, request.merged) == (stream, strip, merged)
    options = json.loads(b"".join(request.body)).get("stream_options")
    assert options == ({"include_usage": True} if stream else None)


def test_each_endpoint_has_its_dialect() -> None:
    assert sent().dialect is openai.COMPLETIONS
    assert sent(RESPONSES).dialect is responses.RESPONSES


def test_a_body_that_will_not_be_sent_again_is_held_no_more() -> None:
    request = sent()
    assert request.held.size == sum(map(len, request.body)) > 0
    request.drop_body()
    assert (request.body, request.held.size) == ((), 0)
