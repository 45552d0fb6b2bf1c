from __future__ import annotations

import json

import pytest

from gateway.errors import EngineFailed
from gateway.wire.mistral import chat_request, image_url, read_text, refusal
from gateway.wire.openai import parse_request
from tests.support import completion, encoded, picture

SCHEMA = {"type": "json_schema", "json_schema": {"name": "bill", "schema": {"type": "object"}}}


def test_a_pages_request_is_one_that_engines_take() -> None:
    url = image_url(encoded(picture("x"), "JPEG"))
    body = chat_request('a "model"', [url, url], "Text\n", json.dumps(SCHEMA).encode())
    request = parse_request(body, chat=True, max_images=2)
    assert (request.model, request.facts.prompt, request.facts.schema) == (
        'a "model"',
        "Text\n",
        {"type": "object"},
    )
    assert [bytes(part.url) for part in request.images] == [url, url]
    assert "response_format" not in json.loads(chat_request("m", [url], "Text"))


def test_an_answers_text_is_read() -> None:
    assert read_text(json.dumps(completion("hello")).encode()) == ("hello", "stop")
    empty = {"choices": [{"message": {"content": None}}]}
    assert read_text(json.dumps(empty).encode()) == ("", None)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"content":[]}}]}'])
def test_what_is_no_answer_is_the_engines_fault(body: bytes) -> None:
    with pytest.raises(EngineFailed):
        read_text(body)


def test_an_engines_refusal_keeps_its_words_and_status() -> None:
    error = refusal(400, b'{"error":{"message":"encoder cache"}}')
    assert (error.status, error.message, error.kind, error.retry_after) == (
        400,
        "encoder cache",
        "invalid_request_error",
        None,
    )
    assert "422" in refusal(422, b"{}").message
