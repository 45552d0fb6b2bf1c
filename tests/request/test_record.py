"""What becomes of a request, and what the log and /status tell of it."""

from __future__ import annotations

import base64
import json
import logging
from typing import TYPE_CHECKING, Any

from gateway.engines.vllm_json import speculative_object
from tests.support import (
    FakeEngine,
    _Sender,
    chat,
    completion,
    png,
)

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Running

CHAT = "/v1/chat/completions"


async def test_no_document_stands_in_the_log(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await running.http.post(CHAT, json=chat("A secret prompt: Zanzibar"))
    (record,) = [record for record in caplog.records if record.name == "gateway.access"]
    assert record.fields.items() >= {"code": 200, "route": "text", "completion_tokens": 2}.items()  # type: ignore[attr-defined]
    logged = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    for secret in ("Zanzibar", "hello world", base64.b64encode(png("hello")).decode()[:20]):
        assert secret not in logged


async def test_a_log_line_ties_a_request_to_its_engine_depth_and_acceptance(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told = {"speculative_decoding": speculative_object([20, 26, 26, 38], 330)}

    async def drafting(engine: FakeEngine, request: Any, send: _Sender) -> None:
        await send.json({**completion("hello"), "usage": {"completion_tokens": 301}, "metrics": told})

    running.deep.behave = drafting
    await running.http.post(CHAT, json=chat("Table Recognition:"), headers={"x-request-id": "slow-1"})
    (record,) = [record for record in caplog.records if record.name == "gateway.access"]
    fields = record.fields  # type: ignore[attr-defined]
    assert fields.items() >= {"request_id": "slow-1", "route": "table", "pool": "mtp3", "depth": 3}.items()
    assert (fields["acceptance_length"], fields["acceptance_source"]) == (2.7455, "request")
    assert fields["engine"]
    where = {"route": "table", "pool": "mtp3"}
    assert await running.metric("ocr_gateway_spec_drafts_total", source="request", **where) == 110
    assert (
        await running.metric("ocr_gateway_spec_accepted_tokens_per_position_total", position="2", **where)
        == 38
    )


async def test_status_tells_what_became_of_a_request_and_why_but_nothing_of_it(running: Running) -> None:
    async def drafting(engine: FakeEngine, request: Any, send: _Sender) -> None:
        told = {"speculative_decoding": speculative_object([20, 26, 26, 38], 330)}
        await send.json({**completion("hello"), "usage": {"completion_tokens": 301}, "metrics": told})

    running.deep.behave = drafting
    await running.http.post(CHAT, json=chat("Table Recognition:"), headers={"x-request-id": "slow-1"})
    await running.http.post(CHAT, json=chat("Zanzibar", metadata={"ocr_route": 5}))  # never sorted
    status = (await running.http.get("/status")).json()
    (told,) = status["recent"]
    expected: dict[str, Any] = {
        "request_id": "slow-1",
        "route": "table",
        "reason": "prompt",
        "pool": "mtp3",
        "depth": 3,
    }
    expected |= {"code": 200, "completion_tokens": 301, "acceptance_length": 2.745, "why": "load"}
    assert told.items() >= {**expected, "waited_s": 0.0}.items()
    assert told["engine"] in {engine["engine"] for engine in status["engines"]}
    assert 0 < told["seconds"] < 60
    assert status["routes"]["table"]["acceptance_length"] == 2.745
    assert (status["routes"]["table"]["requests"], status["routes"]["text"]["requests"]) == (1, 0)
    assert "Zanzibar" not in json.dumps(status)
