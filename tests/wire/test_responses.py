from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest, EngineFailed
from gateway.model import Usage
from gateway.wire import sse
from gateway.wire.openai.completion import StreamChunk, WholeAnswer
from gateway.wire.openai.request_body import rewritten
from gateway.wire.responses import error_event, parse_request, read_answer, read_chunk
from tests.support import asked, response, response_events
from tests.wire.openai.test_request_body import JSON

if TYPE_CHECKING:
    from gateway.wire.openai.request_body import CompletionRequest

URL = "data:image/png;base64,AAAA"
LARGE = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 21).decode()
SCHEMA = {"properties": {"total": {}}}


def parse(value: Any, **options: Any) -> CompletionRequest:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_request(body, **{"max_images": 2, **options})


def said(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"input": [{"type": "message", "role": role, "content": list(parts)}]}


def test_reads_what_clients_send() -> None:
    request = parse(asked("Table Recognition:", URL, stream=True, model="m", store=True, include=[]))
    assert (request.model, request.stream, request.facts.prompt) == ("m", True, "Table Recognition:")
    assert [(bytes(image.url), image.param) for image in request.images] == [
        (URL.encode(), "input[0].content[0].image_url")
    ]
    assert request.facts.has_image
    assert request.merged  # its events tell no steps


def test_a_string_is_what_the_user_says_and_instructions_are_the_systems() -> None:
    facts = parse({"input": "ping", "instructions": "be brief"}).facts
    assert (facts.prompt, facts.system, facts.has_image) == ("ping", "be brief", False)
    assert parse({"input": "ping", "instructions": ["be brief"]}).facts.system == ""  # the engine's to refuse


def test_texts_are_joined_by_role_and_what_was_said_before_is_not_asked_for() -> None:
    items = [
        {"role": "developer", "content": "and exact"},
        {"role": "user", "content": [{"type": "input_text", "text": "before"}, {"type": "input_text"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Table Recognition:"}]},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "42"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "42"}]},
        {"role": "user", "content": "after"},
    ]
    facts = parse({"input": items, "instructions": "be brief"}).facts
    assert (facts.prompt, facts.system) == ("before\nafter", "be brief\nand exact")


@pytest.mark.parametrize(
    ("members", "field", "expected"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "r", "schema": SCHEMA}}}, "schema", SCHEMA),
        ({"text": {"format": {"type": "json_schema", "name": "r"}}}, "schema", None),
        ({"text": {"format": {"type": "json_object"}}}, "wants_json", True),
        ({"text": {"format": {"type": "text"}}}, "wants_json", False),
        ({"text": {"format": "json"}}, "wants_json", False),
        ({"text": "json"}, "schema", None),
        ({"structured_outputs": {"json": SCHEMA}}, "schema", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "wants_json", True),
        ({"tool_choice": "required", "tools": [{"type": "function", "name": "f"}]}, "schema", {}),
        ({"tool_choice": "required", "tools": []}, "schema", None),
        ({"tool_choice": "auto", "tools": [{"type": "function", "name": "f"}]}, "schema", None),
        (
            {
                "tool_choice": {"type": "function", "name": "g"},
                "tools": [
                    {"type": "function", "name": "f", "parameters": {}},
                    {"type": "function", "name": "g", "parameters": SCHEMA},
                ],
            },
            "schema",
            SCHEMA,
        ),
        (
            {"tool_choice": {"type": "function", "name": "g"}, "tools": [{"type": "function", "name": "f"}]},
            "schema",
            None,
        ),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": None}, "schema", None),
        ({"metadata": {"ocr_route": "table"}}, "metadata", "table"),
    ],
)
def test_structure_is_found_wherever_clients_put_it(
    members: dict[str, Any], field: str, expected: object
) -> None:
    assert getattr(parse(asked(**members)).facts, field) == expected


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"{", None, "not valid JSON"),
        (b"[]", None, "the body: Expected `object`"),
        ({}, "input", "missing or empty"),
        ({"input": []}, "input", "missing or empty"),
        ({"input": None}, "input", "missing or empty"),
        ({"input": 5}, "input", "Expected `str"),
        ({"input": [{"content": 5}]}, "input[0].content", "Expected"),
        ({"input": [{"output": {"type": "computer_screenshot"}}]}, "input[0].output", "Expected"),
        (asked(stream="yes"), "stream", "Expected `bool"),
        (asked(metadata={"ocr_route": 5}), "metadata.ocr_route", "must be a string"),
        (said({"type": "input_image"}), "input[0].content[0].image_url", "must be a string"),
        (said(*[{"type": "input_image", "image_url": URL}] * 3), "input", "3 images; at most 2"),
        ({"input": [{"role": "user", "content": [{}] * 60_000}]}, None, "more than 50,000 elements"),
    ],
)
def test_what_is_wrong_is_named(body: object, param: str | None, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        parse(body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("members", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "the whole conversation in `input`"),
        ({"previous_response": {"id": "resp_1"}}, "previous_response", "the whole conversation"),
        ({"previous_input_messages": [{}]}, "previous_input_messages", "the whole conversation"),
        ({"conversation": "conv_1"}, "conversation", "the whole conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "the whole conversation"),
        ({"background": True}, "background", "have it streamed"),
        ({"tools": [{"type": "mcp", "server_url": "http://10.0.0.1/"}]}, "tools[0]", "must be `function`"),
        (
            {"tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]},
            "tools[1]",
            "must be `function`",
        ),
        ({"kv_transfer_params": {"remote_host": "10.0.0.1"}}, "kv_transfer_params", "not for clients"),
        ({"mm_processor_kwargs": {"images": "page.png"}}, "mm_processor_kwargs", "plain words"),
    ],
)
def test_what_cannot_work_behind_a_balancer_or_would_reach_out_is_refused_by_name(
    members: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        parse({**asked(), **members})
    assert (refused.value.param, refused.value.code) == (param, "unsupported_parameter")


def test_what_asks_for_nothing_of_the_kind_passes() -> None:
    none = dict.fromkeys(("previous_response_id", "conversation", "previous_input_messages", "tools"))
    assert parse(asked(**none, background=False, store=True, truncation="auto")).images


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_file", "file_data": "data:application/pdf;base64,"},
        {"type": "input_file", "file_id": "file-1"},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "input_image", "image_url": URL, "file_url": "http://10.0.0.1/"},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,"}},
    ],
)
def test_a_file_is_sent_to_v1_ocr(part: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"POST /v1/ocr, or its pages as `input_image` parts") as refused:
        parse(said(part))
    assert (refused.value.code, refused.value.param) == ("unsupported_content_part", "input[0].content[0]")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "input_audio", "input_audio": {"data": ""}},
        {"type": "input_text", "text": "hi", "video_url": {"url": "http://10.0.0.1/"}},
        {"type": "input_image", "image_url": URL, "uuid": "1"},
        {"type": "tool_reference", "name": "x"},
    ],
)
@pytest.mark.parametrize("where", ["content", "output"])
def test_other_media_never_reach_an_engine(part: dict[str, Any], where: str) -> None:
    with pytest.raises(BadRequest, match="only `input_text` and `input_image`") as refused:
        parse({"input": [{"role": "user", where: [part]}]})
    assert refused.value.param == f"input[0].{where}[0]"


def test_what_a_tool_gives_back_is_text() -> None:
    with pytest.raises(BadRequest, match="must be text") as refused:
        parse(
            {
                "input": [
                    {"type": "function_call_output", "output": [{"type": "input_image", "image_url": URL}]}
                ]
            }
        )
    assert (refused.value.code, refused.value.param) == ("unsupported_content_part", "input[0].output")


def test_an_image_is_looked_at_whatever_its_part_says_to_be() -> None:
    for kind in ("input_text", None):
        assert len(parse(said({"type": kind, "image_url": URL})).images) == 1


def test_of_a_long_text_nothing_large_is_kept_but_by_an_engine() -> None:
    body = {"input": "x" * 2**20, "instructions": "y" * 100_000}
    facts = parse(body).facts
    assert (len(facts.prompt), len(facts.system)) == (65_536, 65_536)
    assert len(parse(body, from_gateway=True).facts.prompt) == 2**20


@pytest.mark.parametrize("url", [URL, LARGE])
def test_the_bytes_pass_unchanged_but_for_an_alias_and_a_mended_image(url: str) -> None:
    body = b' {"model": "m:table", "temperature" : 1e0, "stream": true, "instructions": "%s",' % url.encode()
    body += (
        b'"input" : ' + json.dumps(said({"type": "input_image", "image_url": url})["input"]).encode() + b"}"
    )
    request = parse(body)
    assert b"".join(rewritten(request)) == body
    got = b"".join(
        rewritten(request, model="m", repaired={part.raw: b'"data:new"' for part in request.images})
    )
    assert b'"temperature":1e0' in got
    value = json.loads(got)
    assert (value["model"], value["instructions"]) == ("m", url)
    assert "stream_options" not in value
    assert value["input"][0]["content"] == [{"type": "input_image", "image_url": "data:new"}]


def test_a_large_image_is_cut_out_before_the_rest_is_read() -> None:
    request = parse(asked("Table Recognition:", LARGE))
    (part,) = request.images
    assert len(request.lifted.skeleton) < 300
    assert bytes(part.url).decode() == LARGE
    assert part.data == bytes(range(256)) * 21
    assert json.loads(b"".join(rewritten(request, model="m"))) == asked(
        "Table Recognition:", LARGE, model="m"
    )


NAMES = st.sampled_from(
    [
        "model",
        "input",
        "instructions",
        "stream",
        "metadata",
        "tools",
        "tool_choice",
        "text",
        "structured_outputs",
        "background",
    ]
)
ITEMS = st.lists(
    st.dictionaries(st.sampled_from(["type", "role", "content", "output"]), JSON, max_size=4), max_size=3
)


@given(st.dictionaries(NAMES, JSON) | st.fixed_dictionaries({"input": ITEMS}))
def test_no_json_breaks_the_parser(body: dict[str, Any]) -> None:
    with contextlib.suppress(BadRequest):
        parse(body)


def test_a_whole_answer_tells_its_usage() -> None:
    assert read_answer(json.dumps(response()).encode()) == WholeAnswer(Usage(7, 2))
    assert read_answer(json.dumps(response(usage=None)).encode()) == WholeAnswer()
    assert read_answer(json.dumps(response(usage={"a": "x" * 5000})).encode()) == WholeAnswer()
    assert read_answer(json.dumps(response(status="incomplete")).encode()) == WholeAnswer(Usage(7, 2))
    cut = read_answer(json.dumps(response(status="cancelled")).encode())
    assert cut
    assert cut.is_aborted


@pytest.mark.parametrize(
    "body", [b"", b"garbage", b"[]", b'{"output": {}}', b'{"choices": []}', b'{"output":["\xff"]}']
)
def test_what_is_no_response_is_told_apart(body: bytes) -> None:
    assert read_answer(body) is None
    assert not read_chunk(body).is_chunk


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"type": "response.created"}, StreamChunk(is_chunk=True, is_prelude=True)),
        ({"type": "response.queued"}, StreamChunk(is_chunk=True, is_prelude=True)),
        ({"type": "response.created", "response": "x" * 20_000}, StreamChunk(is_chunk=True)),
        ({"type": "response.output_item.added", "sequence_number": 2}, StreamChunk(is_chunk=True, place=2)),
        ({"type": "response.output_text.delta", "delta": "a"}, StreamChunk(is_chunk=True, has_output=True)),
        ({"type": "response.output_text.delta", "delta": ""}, StreamChunk(is_chunk=True)),
        (
            {"type": "response.function_call_arguments.delta", "delta": "{", "sequence_number": 2**60},
            StreamChunk(is_chunk=True, has_output=True),
        ),
        ({"type": "response.output_text.done", "text": "a"}, StreamChunk(is_chunk=True)),
        (
            {"type": "response.completed", "response": response()},
            StreamChunk(is_chunk=True, is_last=True, usage=Usage(7, 2)),
        ),
        (
            {"type": "response.incomplete", "response": response(status="incomplete")},
            StreamChunk(is_chunk=True, is_last=True, usage=Usage(7, 2)),
        ),
        ({"type": "response.completed"}, StreamChunk(is_chunk=True, is_last=True)),
        (
            {"type": "response.completed", "response": {"status": "cancelled"}},
            StreamChunk(is_chunk=True, is_last=True, is_aborted=True),
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
            StreamChunk(is_chunk=True, is_last=True, is_error=True),
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "invalid_image"}}},
            StreamChunk(is_chunk=True, is_last=True, is_error=True, error_status=400),
        ),
        (
            {"type": "error", "code": "server_error", "message": "m", "sequence_number": 7},
            StreamChunk(is_error=True, is_last=True, place=7),
        ),
        (
            {"error": {"message": "m", "code": 503}},
            StreamChunk(is_error=True, is_last=True, error_status=503),
        ),
        ({"error": {"message": "m", "code": 7}}, StreamChunk(is_error=True, is_last=True)),
        ({"type": "ping"}, StreamChunk()),
    ],
)
def test_what_one_event_tells(event: Any, expected: StreamChunk) -> None:
    assert read_chunk(json.dumps(event).encode()) == expected


def test_a_text_of_many_elements_is_the_last_event_all_the_same() -> None:
    event = {"type": "response.completed", "response": response("[{" * 20_000)}
    assert read_chunk(json.dumps(event).encode()).usage == Usage(7, 2)


EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from([event["type"] for event in response_events("a")]) | JSON,
        "response": st.fixed_dictionaries({}, optional={"usage": JSON, "error": JSON, "status": JSON}) | JSON,
        "sequence_number": JSON,
        "delta": JSON,
        "error": JSON,
        "code": JSON,
    },
)


@given(EVENTS)
def test_no_event_breaks_the_readers(event: Any) -> None:
    data = json.dumps(event).encode()
    told = read_chunk(data)
    read_answer(data)
    assert told.error_status == 0 or 400 <= told.error_status < 600


@given(st.binary(max_size=200))
def test_no_bytes_break_the_readers(data: bytes) -> None:
    assert read_answer(data) is None
    assert not read_chunk(data).is_chunk


def test_a_stream_that_breaks_off_ends_with_the_apis_own_error() -> None:
    event = error_event(EngineFailed("the engine\nbroke", param="p", code="engine_died"), 4)
    assert event.startswith(b"event: error\ndata: ")
    told = json.loads(sse.event_data(event) or b"")
    error = {"message": "the engine\nbroke", "type": "engine_error", "param": "p", "code": "engine_died"}
    expected = {"type": "error", "sequence_number": 4, "code": "engine_died", "message": "the engine\nbroke"}
    assert told == {**expected, "param": "p", "error": error}
