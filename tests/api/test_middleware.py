"""Headers that every answer has, and methods."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.middleware import CommonHeaders
from gateway.state.requests import OpenRequests
from tests.support import chat

if TYPE_CHECKING:
    from tests.conftest import Running

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("given", ["my-id.1", "a" * 128])
async def test_a_sane_request_id_is_kept_and_passed_on(running: Running, given: str) -> None:
    reply = await running.http.post(CHAT, json=chat(), headers={"x-request-id": given})
    assert reply.headers.get_list("x-request-id") == [given]
    assert running.plain.headers[0]["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "two words", "x\u00e9".encode("latin-1"), '"><script>'])
async def test_any_other_is_replaced(running: Running, given: str | bytes) -> None:
    reply = await running.http.get("/health", headers=[("x-request-id", given)])
    assert len(reply.headers["x-request-id"]) == 32


async def test_probes_by_head_and_wrong_methods(running: Running) -> None:
    for path in ("/health", "/ready", "/v1/models"):
        reply = await running.http.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
    reply = await running.http.get(CHAT)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")


@given(
    st.lists(st.text(st.characters(max_codepoint=255)).map(lambda value: value.encode("latin-1")), max_size=2)
)
def test_whatever_id_comes_a_sane_one_goes(given_ids: list[bytes]) -> None:
    sent: list[Any] = []

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"another")]})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "headers": [(b"x-request-id", one) for one in given_ids]}
    state: Any = SimpleNamespace(requests=OpenRequests())
    asyncio.run(CommonHeaders(answers, state)(scope, None, send))  # type: ignore[arg-type]
    (told,) = [value for name, value in sent[0]["headers"] if name == b"x-request-id"]
    assert re.fullmatch(rb"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}", told)
    assert told in given_ids or len(told) == 32
