"""Routes, as clients see which one they got and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support import (
    chat,
    data_url,
    encoded,
    picture,
)

if TYPE_CHECKING:
    from tests.conftest import Running

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("request_", "headers", "route", "reason", "pool", "depth"),
    [
        (chat(), {"x-ocr-route": "table"}, "table", "header", "mtp3", "3"),
        (chat(model="glm-ocr:key-value"), {}, "key-value", "model", "mtp3", "3"),
        (chat(metadata={"ocr_route": "table"}), {}, "table", "metadata", "mtp3", "3"),
        (chat("Table Recognition:"), {}, "table", "prompt", "mtp3", "3"),
        (chat("", response_format={"type": "json_object"}), {}, "key-value", "structure", "mtp3", "3"),
        (chat("hello", None, max_tokens=10), {}, "text", "default", "plain", "0"),
    ],
)
async def test_a_request_goes_to_its_routes_pool_and_the_answer_says_why(
    running: Running,
    request_: dict[str, Any],
    headers: dict[str, str],
    route: str,
    reason: str,
    pool: str,
    depth: str,
) -> None:
    reply = await running.http.post(CHAT, json=request_, headers=headers)
    assert reply.status_code == 200
    told = {"x-ocr-route": route, "x-ocr-route-reason": reason, "x-ocr-pool": pool, "x-ocr-depth": depth}
    assert reply.headers.items() >= told.items()
    engine = running.plain if pool == "plain" else running.deep
    assert [request["model"] for request in engine.requests] == ["glm-ocr"]
    assert await running.metric("ocr_gateway_sort_decisions_total", route=route, reason=reason) == 1


async def test_only_the_image_decides_where_nothing_else_does(running: Running) -> None:
    lines = "\n".join(["the quick brown fox jumps over the lazy dog and runs away"] * 12)
    page = encoded(picture(lines, (620, 330)), "PNG")
    reply = await running.http.post(CHAT, json=chat("", data_url(page)))
    assert reply.headers["x-ocr-route-reason"] == "image"
