from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire import openai
from gateway.wire import partial_json as lifting
from gateway.wire.openai import request_body
from gateway.wire.openai.completion import sent
from gateway.wire.partial_json import (
    ANY,
    KEPT_BYTES,
    MAX_ELEMENTS,
    NULL,
    STRING,
    Lifted,
    built,
    decode,
    decode_body,
    lift,
    member_of,
    object_of,
)
from tests.support import chat

HEAD = b'{"a":"data:image/png;base64,'
DATA = bytes(range(256)) * 21
TEXT = base64.b64encode(DATA)


def with_images(*urls: bytes, before: bytes = b"") -> bytes:
    parts = b",".join(b'{"type":"image_url","image_url":{"url":"%s"}}' % url for url in urls)
    return b'{%s"messages":[{"role":"user","content":[%s]}]}' % (before, parts)


def test_the_text_of_a_large_image_is_cut_out_and_all_else_stays() -> None:
    lifted = lift(HEAD + TEXT + b'", "b": 1}', 1)
    assert lifted
    assert lifted.skeleton == HEAD + b'\x7f0", "b": 1}'
    assert lifted.texts == {b'"data:image/png;base64,\x7f0"': b'"data:image/png;base64,%s"' % TEXT}
    assert lifted.image == DATA


def test_of_several_none_is_kept_decoded() -> None:
    url = b"data:image/jpeg;base64," + TEXT
    lifted = lift(with_images(url, b"data:image/png;base64,AAAA", url), 2)
    assert lifted
    assert len(lifted.texts) == 2
    assert b"base64,AAAA" in lifted.skeleton
    assert lifted.image is None


def test_of_a_large_one_nothing_is_kept_decoded() -> None:
    lifted = lift(HEAD + b"A" * (KEPT_BYTES + 4) + b'"}', 1)
    assert lifted
    assert len(lifted.skeleton) < 100
    assert lifted.image is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        HEAD,
        HEAD + TEXT,
        HEAD + TEXT[:400] + b'"}',
        HEAD + TEXT[:-1] + b'"}',
        HEAD + TEXT[:80] + rb"\n" + TEXT[80:] + b'"}',
        HEAD + TEXT[:80] + b"\n" + TEXT[80:] + b'"}',
        HEAD + TEXT.replace(b"+", b"-") + b'"}',
        HEAD + b"\xff" + TEXT + b'"}',
        HEAD.replace(b"/", rb"\/") + TEXT + b'"}',
        HEAD.replace(b"data", b"DATA") + TEXT + b'"}',
        HEAD.replace(b";", b";charset=utf-8;") + TEXT + b'"}',
        HEAD + TEXT + b'","b":"\x7f"}',
        HEAD + TEXT + b'","b":"data:;base64,\x7f0"}',
        HEAD + TEXT + b'","b":"data:;base64,' + TEXT + b'"}',
        HEAD + b"A" * KEPT_BYTES + rb"\n" + b'"}',
        HEAD + TEXT + b'"' + b',"data:' * 256,
        HEAD + TEXT + b'","b":"' + b"b" * 2**20 + b'"}',
    ],
)
def test_what_is_short_or_odd_or_too_many_is_left_as_it_is(body: bytes) -> None:
    assert lift(body, 1) is None


def outcome(body: bytes, *, chat: bool = True) -> Any:
    """Everything that a body's reading tells, and what an engine gets for it in every case."""
    try:
        request = openai.parse_request(body, chat=chat, max_images=3)
    except BadRequest as error:
        return error.message, error.param, error.code
    facts = (request.model, request.stream, request.include_usage, request.merged, request.facts)
    urls = [(bytes(image.url), image.param) for image in request.images]
    sent = [
        b"".join(openai.rewritten(request, model=model, repaired=repaired))
        for model in (None, "m")
        for repaired in ({}, {part.raw: b'"data:new"' for part in request.images})
    ]
    return facts, urls, sent


class Unlifted:
    """While it is open, every body is read in full."""

    def __enter__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(request_body, "lift", lambda *_: None)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


# With so short a text already cut out, small examples have them.
LEAST = 8
PIECES = st.lists(
    st.sampled_from(
        [
            b'"data:image/png;base64,',
            b'"data:;base64,',
            b'"data:image\\/png;base64,',
            b";base64,",
            b'"data:',
            b"AAAABBBBCCCC",
            b"/+/+/+/+",
            b"AAAABBBBCCC=",
            b"AAAABBB=CCCC",
            b"\\n",
            b"\n",
            b"\\",
            b'\\"',
            b'"',
            b"\x7f0",
            b"\\u007f0",
            b"\xc3\xa9",
            b"\xff",
            b",",
            b":",
            b"{",
            b"}",
            b"[",
            b"]",
            b'{"type":"image_url","image_url":',
            b'{"url":',
            b'"image_url":',
            b'"text":',
        ]
    ),
    max_size=12,
).map(b"".join)
URL = st.sampled_from([b"data:image/png;base64,", b"data:;base64,", b"data:;base64;base64,", b"data:x,"])
BASE64 = st.binary(min_size=6, max_size=24).map(base64.b64encode)
URLS = st.builds(bytes.__add__, URL, BASE64) | st.builds(bytes.__add__, URL, PIECES)
STRINGS = st.one_of(
    URLS.map(lambda url: b'"%s"' % url),
    st.sampled_from([b'"x"', b'"\x7f0"', b'"data:;base64,\x7f0"', b'"data:;base64,\\u007f0"', b"null"]),
)
PARTS = st.one_of(
    STRINGS,
    STRINGS.map(lambda url: b'{"type":"image_url","image_url":{"url":%s}}' % url),
    STRINGS.map(lambda url: b'{"image_url":%s}' % url),
    STRINGS.map(lambda text: b'{"type":"text","text":%s}' % text),
    st.builds(lambda a, b: b'{"image_url":{"url":%s,"url":%s}}' % (a, b), STRINGS, STRINGS),
    st.builds(lambda a, b: b'{"image_url":{"url":%s,"detail":%s}}' % (a, b), STRINGS, STRINGS),
    st.builds(lambda a, b: b'{"image_url":%s,"image_url":%s}' % (a, b), STRINGS, STRINGS),
    PIECES,
)
MEMBERS = st.one_of(
    st.builds(lambda name, value: b"%s:%s," % (name, value), STRINGS, STRINGS),
    st.sampled_from([b'"stream":true,', b'"stream_options":{"a":"data:;base64,\\u007f0"},', b'"model":"m",']),
    STRINGS.map(lambda text: b'"guided_json":%s,"stream":true,' % text),
    STRINGS.map(lambda text: b'"stream_options":{"a":%s},' % text),
    st.just(b""),
)


@given(MEMBERS, st.lists(PARTS, max_size=4), MEMBERS, PIECES | st.just(b""), st.booleans())
@example(b"", [b'{"image_url":"data:;base64,AAAABBBBCCCC"}'], b'"stream_options":5,', b"", True)
def test_a_request_is_read_and_passed_on_as_it_is_without(
    first: bytes, parts: list[bytes], last: bytes, behind: bytes, is_chat: bool
) -> None:
    message = b'{"role":"user","content":[%s]}' % b",".join(parts)
    body = b'{%s"messages":[%s],%s"prompt":"x"}%s' % (first, message, last, behind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "LEAST_BYTES", LEAST)
        patch.setattr(request_body, "LEAST_BYTES", LEAST)
        told = outcome(body, chat=is_chat)
    with Unlifted():
        assert told == outcome(body, chat=is_chat)


@given(PIECES)
def test_no_bytes_are_read_otherwise(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "LEAST_BYTES", LEAST)
        patch.setattr(request_body, "LEAST_BYTES", LEAST)
        told = outcome(body)
        lifted = lift(body, 9)
    with Unlifted():
        assert told == outcome(body)
    for mark, text in (lifted or Lifted(b"", {})).texts.items():
        assert lifted
        assert lifted.skeleton.count(mark) == 1
        assert bytes(text) in body


def test_a_usual_request_is_lifted_and_an_engine_gets_every_byte_of_it() -> None:
    for stream in (False, True):
        body = json.dumps(chat("Table Recognition:", DATA, stream=stream, top_p=1.0)).encode()
        request = openai.parse_request(body, chat=True, max_images=1)
        assert len(request.lifted.skeleton) < 400
        assert [image.data for image in request.images] == [DATA]
        sent = b"".join(openai.rewritten(request))
        assert sent.startswith(body[:-1])
        assert json.loads(sent) == json.loads(body) | (
            {"stream_options": {"include_usage": True}} if stream else {}
        )
        assert sent == body or stream


def test_beside_a_new_model_every_byte_of_the_messages_stays() -> None:
    body = with_images(
        b"data:image/png;base64," + TEXT, b"data:image/gif;base64," + TEXT, before=b'"model":"m:table", '
    )
    body = body.replace(b'"user"', b'\n "user",  "name": 1.0').replace(b"}]", b"} ]")
    request = openai.parse_request(body, chat=True, max_images=2)
    assert len(request.lifted.texts) == 2
    assert b"".join(openai.rewritten(request, model="m")) == body.replace(b'"m:table", ', b'"m",')


def test_nothing_large_is_copied_on_the_way_to_an_engine() -> None:
    url = b"data:image/png;base64," + TEXT * 2
    body = with_images(url, b"http://a.example/b", url, before=b'"model":"m:table",')
    request = openai.parse_request(body, chat=True, max_images=3)
    new = b'"%s"' % url
    sent = openai.rewritten(request, model="m", repaired={b'"http://a.example/b"': new})
    large = [piece for piece in sent if len(piece) > 4096]
    assert [isinstance(piece, memoryview) and piece.obj is body for piece in large] == [True, False, True]
    assert large[1] is new
    assert b"".join(sent) == with_images(url, url, url, before=b'"model":"m",')


def test_an_image_in_a_text_is_read_with_the_text() -> None:
    text = "data:image/png;base64," + TEXT.decode()
    request = openai.parse_request(json.dumps(chat(text, DATA)).encode(), chat=True, max_images=2)
    assert request.facts.prompt == text
    assert request.lifted.texts == {}


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
