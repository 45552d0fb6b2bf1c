import json

import pytest

from gateway.errors import Unavailable
from gateway.wire.openai.error_shape import (
    error_body,
    is_error_body,
    read_error_message,
    read_error_status,
    sketch,
)


def test_an_engines_words_are_short_and_printable() -> None:
    told = read_error_message(b'{"error": "a\\r\\nb\\u001b[31m' + b"x" * 9000 + b'"}')
    assert told.startswith("a  b [31mxxx")
    assert len(told) == 500


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"error": "b"}', "b"),
        (b'{"object": "error", "message": "c", "code": 404}', "c"),
        (b'{"detail": "d"}', "d"),
        (b'{"detail": [{"msg": "e"}, {"msg": "f"}, 5, {"msg": 7}]}', "e; f"),
        (
            b"<html><head><TITLE>413 Request&nbsp;Entity</TITLE>",
            "413 Request\u00a0Entity".replace("\u00a0", " "),
        ),
        (b"<html><body><h1>Bad Gateway</h1>", "Bad Gateway"),
        (b"<html><body>no heading", ""),
        (b"  upstream timed out\n", "upstream timed out"),
        (b'{"error": {"message": 5}}', ""),
        (b'{"broken', ""),
        (b"", ""),
    ],
)
def test_the_message_is_found_in_every_shape(body: bytes, message: str) -> None:
    assert read_error_message(body) == message
    assert is_error_body(body) is (message == "a")


def test_the_status_is_where_servers_put_it() -> None:
    for body in (b'{"error": {"code": 404}}', b'{"object": "error", "code": 404}'):
        assert read_error_status(body) == 404
    for body in (b'{"error": {"code": 200}}', b'{"error": "x", "code": "404"}', b'{"error": 5}', b"[]", b""):
        assert read_error_status(body) == 0


def test_a_sketch_holds_no_text() -> None:
    assert sketch("application/json", b'{"text": "secret", "n\\n": 1}') == "a JSON object with text, n "
    assert sketch("text/html", b" <h1>502</h1>") == " <h1>502</h1>"
    assert sketch("a/b", b"secret") == "6 bytes of a/b"
    assert sketch("", b"") == "0 bytes of no type"


def test_errors_have_openais_shape() -> None:
    body = json.loads(error_body(Unavailable("later", code="no_engine")))
    assert body == {
        "error": {"message": "later", "type": "service_unavailable", "param": None, "code": "no_engine"}
    }
