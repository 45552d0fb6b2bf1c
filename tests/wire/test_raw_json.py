import msgspec
import pytest

from gateway.errors import BadRequest
from gateway.wire.raw_json import (
    ANY,
    MAX_ELEMENTS,
    NULL,
    STRING,
    built,
    decode,
    decode_body,
    member_of,
    object_of,
    sent,
)


def test_only_small_members_are_built() -> None:
    assert member_of(msgspec.Raw(b'{"a": 1}')) == {"a": 1}
    assert member_of(NULL) is None
    assert member_of(b'"' + b"x" * 2**20 + b'"') is None
    assert built(b'"' + b"x" * 2**20 + b'"') == "x" * 2**20


@pytest.mark.parametrize("text", [b"[1]", b"{", b"\xff", b"[" * 100_000, b"1e999999"])
def test_what_is_no_object_is_an_empty_one(text: bytes) -> None:
    assert object_of(text) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [(b'"\xff"', "not valid JSON"), (b"5", "the body: Expected `str`"), (b"", "not valid JSON")],
)
def test_what_cannot_be_read_of_a_request_is_named(text: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        decode(STRING, text)


def test_a_body_of_very_many_elements_is_not_read() -> None:
    assert decode_body(ANY, b"[" + b"0," * (MAX_ELEMENTS - 1) + b"0]")
    with pytest.raises(BadRequest, match="more than 50,000 elements"):
        decode_body(ANY, b"[" + b"0," * MAX_ELEMENTS + b"0]")


@pytest.mark.parametrize("text", [b"{", b'"\xff"', b"5", b"[" * 100_000])
def test_what_an_engine_sent_is_read_or_is_none(text: bytes) -> None:
    assert sent(STRING, text) is None
    assert sent(STRING, b'"\xc3\xa9"') == "\u00e9"
