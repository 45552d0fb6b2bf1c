import json

from gateway.errors import Unavailable
from gateway.wire.openai.error_shape import error_body, read_error_message


def test_an_engines_words_are_short_and_printable() -> None:
    told = read_error_message(b'{"error": "a\\r\\nb\\u001b[31m' + b"x" * 9000 + b'"}')
    assert told.startswith("a  b [31mxxx")
    assert len(told) == 500


def test_errors_have_openais_shape() -> None:
    body = json.loads(error_body(Unavailable("later", code="no_engine")))
    assert body == {
        "error": {"message": "later", "type": "service_unavailable", "param": None, "code": "no_engine"}
    }
