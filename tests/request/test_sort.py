"""Routes, as clients see which one they got and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.errors import BadRequest
from gateway.model import LayoutGuess, Reason, SortFacts
from gateway.policy.sort.evidence import SortRules
from gateway.request.receive import CheckedImages, ReceivedRequest
from gateway.request.sort import sort
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


class Looker:
    """ImageInspector that has one answer, and counts how often it is asked."""

    def __init__(self, guess: LayoutGuess | None) -> None:
        self.asked: list[tuple[object, int, str]] = []
        self._guess = guess

    async def guess(self, url: object, *, weight: int, client: str) -> LayoutGuess | None:
        self.asked.append((url, weight, client))
        return self._guess


RULES = SortRules(("text", "table"), "text", {})


def received_with(facts: SortFacts, first: bytes | None) -> ReceivedRequest:
    images = CheckedImages(first, 5)
    return ReceivedRequest(facts, images, (), stream=False, strip_usage=False, merged=False)


@pytest.mark.parametrize(
    ("facts", "first", "guess", "route", "reason", "looked"),
    [
        (SortFacts(header="table", has_image=True), b"url", None, "table", Reason.HEADER, False),
        (SortFacts(has_image=True), b"url", LayoutGuess("table", 0.99), "table", Reason.IMAGE, True),
        (SortFacts(has_image=True), b"url", LayoutGuess("table", 0.01), "text", Reason.DEFAULT, True),
        (SortFacts(has_image=True), b"url", None, "text", Reason.DEFAULT, True),
        (SortFacts(has_image=True), None, LayoutGuess("table", 0.99), "text", Reason.DEFAULT, False),
    ],
)
async def test_an_image_is_looked_at_only_where_nothing_cheaper_decides(
    facts: SortFacts,
    first: bytes | None,
    guess: LayoutGuess | None,
    route: str,
    reason: Reason,
    looked: bool,
) -> None:
    vision: Any = Looker(guess)
    received = received_with(facts, first)
    decision = await sort(received, RULES, vision, "client")
    assert (decision.route, decision.reason) == (route, reason)
    assert vision.asked == ([(b"url", 5, "client")] if looked else [])


async def test_a_route_that_there_is_not_is_refused_before_anything_is_looked_at() -> None:
    vision: Any = Looker(None)
    received = received_with(SortFacts(header="tabel"), b"url")
    with pytest.raises(BadRequest) as raised:
        await sort(received, RULES, vision, "client")
    assert raised.value.code == "unknown_route"
    assert vision.asked == []
