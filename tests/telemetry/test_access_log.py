"""The access log: which fields a line has, and which line a document gets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gateway.model import PageCounts, RequestRecord, Speculation, Usage
from gateway.telemetry import access_log
from tests.telemetry.records import record

if TYPE_CHECKING:
    import pytest


def line(caplog: pytest.LogCaptureFixture, one: RequestRecord) -> tuple[str, dict[str, Any]]:
    caplog.set_level(logging.INFO, "gateway.access")
    caplog.clear()
    access_log.write(one)
    (logged,) = caplog.records
    return logged.getMessage(), logged.fields  # type: ignore[attr-defined]


def test_a_requests_line_has_these_fields(caplog: pytest.LogCaptureFixture) -> None:
    served = record(
        code=200,
        seconds=1.23456,
        key="team-a",
        route="table",
        reason="prompt",
        pool="mtp3",
        engine="e:1",
        depth=3,
        waited_s=0.123456,
        first_token_s=0.5,
        usage=Usage(7, 40),
        speculation=Speculation(3, 4),
        acceptance_length=1 + 4 / 3,
        speculation_source="request",
        trace_id="abc",
        retried=("died",),
        why="load, retried after died",
    )
    assert line(caplog, served) == (
        "request",
        {
            "request_id": "id",
            "path": "/v1/chat/completions",
            "code": 200,
            "key": "team-a",
            "route": "table",
            "reason": "prompt",
            "pool": "mtp3",
            "engine": "e:1",
            "depth": 3,
            "seconds": 1.2346,
            "waited": 0.1235,
            "first_token": 0.5,
            "completion_tokens": 40,
            "acceptance_length": 2.3333,
            "acceptance_source": "request",
            "trace_id": "abc",
        },
    )


def test_what_is_not_known_is_empty(caplog: pytest.LogCaptureFixture) -> None:
    assert line(caplog, record(error="model_not_found")) == (
        "request",
        {
            **{"request_id": "id", "path": "/v1/chat/completions", "code": 400, "seconds": 1.0},
            **dict.fromkeys(("key", "route", "reason", "pool", "engine"), ""),
            **dict.fromkeys(("depth", "waited", "first_token", "completion_tokens"), None),
            **dict.fromkeys(("acceptance_length", "acceptance_source", "trace_id"), None),
        },
    )


def test_a_document_has_a_line_of_its_own_beside_its_pages_and_else_one_like_a_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = {"request_id": "id", "path": "/v1/ocr", "code": 502, "key": "", "seconds": 1.0}
    read = record(path="/v1/ocr", code=502, error="engine_died", pages=PageCounts(5, 2, 7))
    assert line(caplog, read) == ("document", {**known, "pages": 5, "failed": 2})
    refused = read._replace(pages=PageCounts(5, 5, 0))
    assert line(caplog, refused) == ("request", {**known, "error": "engine_died"})
