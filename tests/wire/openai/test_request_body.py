import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire.openai.request_body import CompletionRequest, parse_request
from gateway.wire.openai.request_body import rewritten as pieces
from tests.support import chat

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def parse(value: Any, *, is_chat: bool = True) -> CompletionRequest:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_request(body, chat=is_chat, max_images=2)


def test_reads_what_clients_send() -> None:
    request = parse(chat("Table Recognition:", "data:image/png;base64,AAAA", stream=True, model="m"))
    assert (request.model, request.stream, request.include_usage) == ("m", True, False)
    assert [(image.url, image.param) for image in request.images] == [
        (b"data:image/png;base64,AAAA", "messages[0].content[0].image_url")
    ]
    assert request.facts.prompt == "Table Recognition:"
    assert request.facts.has_image


def test_texts_are_joined_whichever_side_of_the_image_and_by_role() -> None:
    image = {"type": "image_url", "image_url": "data:,"}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "and exact"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": ["before", image, {"type": "text", "text": "after"}, {"type": "text"}]},
    ]
    facts = parse({"messages": messages}).facts
    assert (facts.prompt, facts.system) == ("before\nafter", "be brief\nand exact")


def test_escapes_in_an_image_url_are_undone() -> None:
    body = (
        rb'{"messages":[{"role":"user","content":[{"image_url":{"url":"data:image\/png;base64,AA\nAA"}}]}]}'
    )
    (image,) = parse(body).images
    assert image.url == b"data:image/png;base64,AA\nAA"


@pytest.mark.parametrize(
    ("members", "field", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, "wants_json", True),
        ({"structured_outputs": {"json_object": True}}, "wants_json", True),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            "schema",
            {"a": 1},
        ),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, "schema", None),
        ({"structured_outputs": {"json": {"b": 1}}}, "schema", {"b": 1}),
        ({"guided_json": '{"c": 1}'}, "schema", {"c": 1}),
        ({"guided_json": "no json"}, "schema", None),
        ({"guided_regex": "[a-z]*"}, "schema", None),
        ({"tool_choice": "auto", "tools": [{"function": {"name": "f"}}]}, "schema", None),
        (
            {"tool_choice": "required", "tools": [{"function": {"name": "f", "parameters": {"d": 1}}}]},
            "schema",
            {"d": 1},
        ),
        ({"tool_choice": "required", "tools": [{"function": {"name": "f"}}]}, "schema", {}),
        ({"tool_choice": "required", "tools": [7, {"function": 7}]}, "schema", None),
        ({"tool_choice": "required", "tools": "all"}, "schema", None),
        (
            {
                "tool_choice": {"type": "function", "function": {"name": "g"}},
                "tools": [
                    {"function": {"name": "f", "parameters": {}}},
                    {"function": {"name": "g", "parameters": {"e": 1}}},
                ],
            },
            "schema",
            {"e": 1},
        ),
        ({"chat_template_kwargs": {"template": {"f": ""}}}, "template", {"f": ""}),
        ({"chat_template_kwargs": {"mode": "markdown"}}, "template_mode", "markdown"),
        ({"chat_template_kwargs": {"mode": 3}}, "template_mode", None),
        ({"chat_template_kwargs": "x"}, "template_mode", None),
        ({"metadata": {"ocr_route": "table"}}, "metadata", "table"),
        ({"metadata": None}, "metadata", None),
    ],
)
def test_structure_is_found_wherever_clients_put_it(
    members: dict[str, Any], field: str, expected: object
) -> None:
    assert getattr(parse(chat(**members)).facts, field) == expected


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"\xff", None, "not valid JSON"),
        (b"[]", None, "the body: Expected `object`"),
        (b'{"prompt":' + b"[" * 40_000, None, "nested too deeply"),
        (b'{"x":' * 40_000, None, "nested too deeply"),
        (b'{"metadata":[' + b"[[[[]]]]," * 12_000 + b"0]}", None, "more than 50,000 elements"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', None, "not valid JSON"),
        (b'{"\xff":1,"messages":[{"role":"user","content":"x"}]}', None, "not valid JSON"),
        ({"messages": [{"role": "user", "content": [{}] * 60_000}]}, None, "more than 50,000 elements"),
        ({}, "messages", "missing or empty"),
        ({"messages": []}, "messages", "missing or empty"),
        ({"messages": None}, "messages", "missing or empty"),
        ({"messages": 5}, "messages", "Expected `array"),
        ({"messages": [{"content": "x"}]}, "messages[0]", "role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "Expected"),
        ({"model": 5, "messages": []}, "model", "Expected `str"),
        (chat(stream="yes"), "stream", "Expected `bool"),
        (chat(image=None, metadata={"ocr_route": 5}), "metadata.ocr_route", "must be a string"),
    ],
)
def test_what_is_wrong_is_named(body: object, param: str | None, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        parse(body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video_url", "video_url": {"url": "http://169.254.169.254/"}},
        {"type": "text", "text": "hi", "video_url": {"url": "http://10.0.0.1/"}},
        {"audio_url": {"url": "http://10.0.0.1/"}},
        {"type": "image_url", "image_url": {"url": "data:,"}, "image_embeds": "AAAA"},
    ],
)
def test_other_media_never_reach_an_engine(part: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="only `text` and `image_url`"):
        parse({"messages": [{"role": "user", "content": [part]}]})


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_file", "file_data": "data:application/pdf;base64,"},
    ],
)
def test_a_file_is_sent_to_v1_ocr(part: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"POST /v1/ocr, or its pages as `image_url` parts") as refused:
        parse({"messages": [{"role": "user", "content": [part]}]})
    assert (refused.value.code, refused.value.param) == ("unsupported_content_part", "messages[0].content[0]")


@pytest.mark.parametrize("url", [{}, {"url": 5}, {"url": None}, 5, None, []])
def test_an_image_part_needs_a_url(url: object) -> None:
    with pytest.raises(BadRequest, match="must be a string"):
        parse({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]})


def test_images_are_counted() -> None:
    body = chat()
    body["messages"][0]["content"] *= 3
    with pytest.raises(BadRequest, match="3 images; at most 2"):
        parse(body)


def test_a_text_completion_needs_no_messages() -> None:
    assert parse({"prompt": "ping"}, is_chat=False).facts.prompt == "ping"
    assert parse({"prompt": [1, 2]}, is_chat=False).facts.prompt == ""


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "model",
                "messages",
                "stream",
                "metadata",
                "tools",
                "tool_choice",
                "guided_json",
                "response_format",
                "structured_outputs",
                "chat_template_kwargs",
                "stream_options",
            ]
        ),
        JSON,
    )
)
def test_no_json_breaks_the_parser(body: dict[str, Any]) -> None:
    body.setdefault("messages", [{"role": "user", "content": "x"}])
    with contextlib.suppress(BadRequest):
        parse(body)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(body)


@pytest.mark.parametrize(("interval", "merged"), [(None, False), (1, False), (4, True), ("4", True)])
def test_a_client_may_ask_for_merged_chunks(interval: object, merged: bool) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "a"}], "stream_interval": interval}).encode()
    assert parse_request(body, chat=True, max_images=1).merged is merged


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"kv_transfer_params": {"remote_host": "10.0.0.1", "remote_port": 1}}, "kv_transfer_params"),
        ({"ec_transfer_params": {}}, "ec_transfer_params"),
        ({"vllm_xargs": {"kv_transfer_params": "x"}}, "kv_transfer_params"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"prompt_embeds": ["AAAA"]}, "prompt_embeds"),
        ({"mm_processor_kwargs": {"min_pixels": 10**9}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"size": {"shortest_edge": 1e12}}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"images_kwargs": {"size": {"height": 9000}}}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"width": [9000]}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"min_pixels": 10**7}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": 10**9}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"videos": ["http://10.0.0.1/"]}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"a": {"b": [1, {"c": "/etc/passwd"}]}}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": "http://10.0.0.1/"}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"images": "page.png"}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"images": "A" * 65}}, "mm_processor_kwargs"),
        ({"media_io_kwargs": {"image": {"backend": "http:x"}}}, "media_io_kwargs"),
    ],
)
@pytest.mark.parametrize("chat", [True, False])
def test_nothing_that_engines_could_reach_for_passes(members: dict[str, Any], param: str, chat: bool) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", **members}
    with pytest.raises(BadRequest) as refused:
        parse_request(json.dumps(body).encode(), chat=chat, max_images=1)
    assert (refused.value.param, refused.value.code) == (param, "unsupported_parameter")


def test_what_engines_parse_and_we_do_not_is_not_passed_unseen() -> None:
    body = '{"prompt": "x", "mm_processor_kwargs": {"a": "\\ud800", "videos": "http://10.0.0.1/"}}'
    with pytest.raises(BadRequest, match="not valid JSON"):
        parse_request(body.encode(), chat=False, max_images=1)


@pytest.mark.parametrize(
    "members",
    [
        {
            "mm_processor_kwargs": {
                "min_pixels": 3136,
                "max_pixels": 1003520,
                "do_resize": False,
                "size": None,
            }
        },
        {"media_io_kwargs": {"image": {"image_mode": "RGB", "rgba_background_color": [255, 255, 255]}}},
        {"vllm_xargs": {"ngram_size": 30, "window_size": 90, "whitelist_token_ids": [128821]}},
        {"mm_processor_kwargs": {"size": {"shortest_edge": 12544, "longest_edge": 9633792}}},
        {"mm_processor_kwargs": {"size": {"height": 1024, "width": 1024}}},
        {"n": 16},
        {"n": 1.0},
        {"n": 2, "prompt": ["a"] * 8},
        {"prompt": list(range(100))},
        {"vllm_xargs": None, "mm_processor_kwargs": None, "kv_transfer_params": None},
    ],
)
def test_what_real_clients_send_passes(members: dict[str, Any]) -> None:
    body = json.dumps({"prompt": "x", **members}).encode()
    assert parse_request(body, chat=False, max_images=1).body == body


@pytest.mark.parametrize(
    ("members", "chat", "param"),
    [
        ({"n": 17}, True, "n"),
        ({"n": 17.0}, True, "n"),
        ({"n": 17, "prompt": [1] * 17}, False, "n"),
        ({"n": 9, "prompt": ["a", "b"]}, False, "n"),
        ({"prompt": ["a"] * 17}, False, "prompt"),
        ({"n": None, "prompt": [[1, 2]] * 17}, False, "prompt"),
    ],
)
def test_one_place_on_an_engine_is_not_good_for_any_number_of_answers(
    members: dict[str, Any], chat: bool, param: str
) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "prompt": "x", **members}).encode()
    with pytest.raises(BadRequest) as refused:
        parse_request(body, chat=chat, max_images=1)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", param)


def test_a_schema_in_a_string_is_read_within_the_same_bounds() -> None:
    many = "".join(f"\\u{ord(character):04x}" for character in '{"a":[' + "[]," * 50_000 + "0]}")
    body = b'{"prompt":"x","guided_json":"%s"}' % many.encode()
    assert parse_request(body, chat=False, max_images=1).facts.schema is None


def test_of_a_long_text_and_a_long_schema_nothing_large_is_kept() -> None:
    text = "\U0001f600" + "x" * 2**21
    message = [{"role": role, "content": text} for role in ("system", "user")]
    schema = {"description": text, "properties": {"total": {}}}
    body = json.dumps({"messages": message, "prompt": text, "guided_json": schema, "metadata": {"a": text}})
    for has_messages in (True, False):
        facts = parse_request(body.encode(), chat=has_messages, max_images=1).facts
        assert max(len(facts.prompt), len(facts.system)) == 65_536
        assert facts.schema is None
    facts = parse_request(body.encode(), chat=True, max_images=1, from_gateway=True).facts
    assert facts.prompt == facts.system == text


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "x", "video_embeds": "AAAA"},
        {"type": "text", "text": "x", "prompt_embeds": "AAAA"},
        # vLLM takes what has such a name out of its cache, be it another client's page.
        {**IMAGE, "uuid": "1"},
        {**IMAGE, "uuid": 1},
        {"type": "image_url", "image_url": None, "uuid": "1"},
        {"type": "text", "text": "x", "image_url": None, "uuid": "1"},
        {"uuid": "1"},
    ],
)
def test_embeddings_and_names_in_a_cache_are_refused_whatever_the_part_says_to_be(
    part: dict[str, Any],
) -> None:
    for role in ("user", "tool"):
        body = json.dumps({"messages": [{"role": role, "content": [IMAGE, part]}]}).encode()
        with pytest.raises(BadRequest) as refused:
            parse_request(body, chat=True, max_images=9)
        assert (refused.value.code, refused.value.param) == (
            "unsupported_content_part",
            "messages[0].content[1]",
        )


def test_no_name_in_a_cache_is_no_matter() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": [{**IMAGE, "uuid": None}]}]}).encode()
    assert len(parse_request(body, chat=True, max_images=1).images) == 1


def test_what_a_gateway_sends_may_name_its_images() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": [{**IMAGE, "uuid": "1"}]}]}).encode()
    assert len(parse_request(body, chat=True, max_images=1, from_gateway=True).images) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


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
