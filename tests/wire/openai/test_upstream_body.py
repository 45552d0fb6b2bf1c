import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire.openai.request_body import CompletionRequest, parse_request
from gateway.wire.openai.upstream_body import rewritten as pieces
from tests.support import chat

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def parse(value: Any, *, is_chat: bool = True) -> CompletionRequest:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_request(body, chat=is_chat, max_images=2)


def rewritten(request: CompletionRequest, **options: Any) -> bytes:
    return b"".join(pieces(request, **options))


def test_the_bytes_pass_unchanged_where_nothing_must_change() -> None:
    body = (
        b' {"messages" : [{"role":"user","content":"x"}],\n"stream":true,'
        b' "stream_options":{"include_usage":true}} '
    )
    assert rewritten(parse(body)) == body


def test_changes_are_spliced_and_every_other_member_keeps_its_bytes() -> None:
    body = (
        b'{"temperature": 1e0, "model":"m:table", "stream":true,'
        b' "stream_options": {"continuous_usage_stats": true}, "top_p":0.10,'
        b' "messages": [{"role":"user","content":[{"image_url":{"url":"OLD"}}, "\\u00e9 OLD"]}]}'
    )
    new = rewritten(parse(body), model="m", repaired={b'"OLD"': b'"NEW"'})
    assert b'"temperature":1e0' in new
    assert b'"top_p":0.10' in new
    assert b"\\u00e9 OLD" in new
    value = json.loads(new)
    assert value["model"] == "m"
    assert value["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert value["messages"][0]["content"][0] == {"image_url": {"url": "NEW"}}


def test_a_stream_asks_for_usage_only_if_the_client_did_not() -> None:
    for options in ({}, {"stream_options": None}, {"stream_options": {"include_usage": False}}):
        new = json.loads(rewritten(parse(chat(stream=True, **options))))
        assert new["stream_options"]["include_usage"] is True
    assert "stream_options" not in json.loads(rewritten(parse(chat()), model="m"))


# None of them is a member that is read.
NAMES = st.text().map("x{}".format)


@given(st.dictionaries(NAMES, JSON, max_size=5))
def test_splicing_changes_nothing_else(extra: dict[str, Any]) -> None:
    body = {**extra, **chat(None, None, stream=True)}
    assert json.loads(rewritten(parse(body), model="x")) == {
        **body,
        "model": "x",
        "stream_options": {"include_usage": True},
    }


IMAGES = st.sampled_from(
    ["data:image/png;base64,AAAA", "data:,\u00e9\n", "https://a.example/x.png?a=1&b=2", ""]
)
PARTS = st.one_of(
    st.text(max_size=5),
    st.fixed_dictionaries({}, optional={"type": st.just("text"), "text": st.none() | st.text(max_size=5)}),
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, IMAGES),
    st.builds(lambda url, detail: {"image_url": url, "detail": detail}, IMAGES, JSON),
)
REQUESTS = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "system", "developer", "assistant"])},
                optional={
                    "content": st.none() | st.text(max_size=5) | st.lists(PARTS, max_size=4),
                    "image_url": JSON,
                },
            ),
            min_size=1,
            max_size=3,
        )
    },
    optional={
        "model": st.none() | st.text(max_size=5),
        "stream": st.none() | st.booleans(),
        "stream_options": st.none()
        | st.fixed_dictionaries({}, optional={"include_usage": st.none() | st.booleans(), "other": JSON}),
        "stream_interval": JSON,
        "metadata": JSON,
        "n": JSON,
    },
)


@given(REQUESTS, st.sampled_from([None, "m", '\u00e9"']), st.booleans(), st.booleans())
def test_what_an_engine_gets_is_the_same_request(
    value: dict[str, Any], model: str | None, mends: bool, ascii_only: bool
) -> None:
    try:
        request = parse(json.dumps(value, ensure_ascii=ascii_only).encode())
    except BadRequest:
        return
    new = b'"data:image/png;base64,BBBB"'
    body = rewritten(request, model=model, repaired={part.raw: new for part in request.images if mends})
    again = parse(body)
    assert again.facts == request.facts
    assert again.model == (request.model if model is None else model)
    assert (again.stream, again.merged) == (request.stream, request.merged)
    assert again.include_usage or not request.stream
    assert [part.raw for part in again.images] == [new if mends else part.raw for part in request.images]
    changed = {"model", "stream_options", "messages"}
    untouched = {name: item for name, item in value.items() if name not in changed}
    assert {name: item for name, item in json.loads(body).items() if name not in changed} == untouched
    assert rewritten(again) == body


def test_a_url_is_replaced_where_an_image_stands_and_nowhere_else() -> None:
    url = "https://images.example/a.png"
    content = [
        {"type": "text", "text": url},
        url,
        {"type": "image_url", "image_url": {"url": url, "detail": url}, "note": url},
        {"image_url": url},
        {"type": "text", "text": "x", "image_url": {"url": "another"}},
    ]
    messages = [
        {"role": "system", "content": url},
        {"role": "assistant", "content": None, "tool_calls": [url]},
        {"role": "assistant"},
        {"role": "user", "name": url, "content": content},
    ]
    raw = json.dumps({"messages": messages, "user": url}).encode()
    request = parse_request(raw, chat=True, max_images=9)
    got = json.loads(rewritten(request, repaired={b'"%s"' % url.encode(): b'"data:new"'}))
    content[2] = {"type": "image_url", "image_url": {"url": "data:new", "detail": url}, "note": url}
    content[3] = {"image_url": "data:new"}
    assert got == {"messages": messages, "user": url}
