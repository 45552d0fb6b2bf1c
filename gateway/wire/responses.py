"""OpenAI's Responses API, read only as far as the gateway needs and never rebuilt.

What it would keep between requests (conversations, earlier responses, background work) would be kept by one
of many engines: requests that need it are refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from gateway.errors import BadRequest
from gateway.model import SortFacts
from gateway.wire.openai.completion import MAX_USAGE_BYTES, Dialect, StreamChunk, WholeAnswer, sent, usage_of
from gateway.wire.openai.error_shape import error_body
from gateway.wire.openai.parts import (
    MAX_TEXT_CHARS,
    Kinds,
    Part,
    Reach,
    check_count,
    check_reach,
    first_schema,
    read_content,
    route_of,
)
from gateway.wire.openai.request_body import CompletionRequest, parse_lifted
from gateway.wire.partial_json import NULL, decode_body, is_set, member_of, object_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gateway.errors import GatewayError
    from gateway.model import Usage
    from gateway.wire.openai.parts import ImagePart
    from gateway.wire.partial_json import Lifted

_TEXTS = (None, "text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal")
_PARTS = Kinds(frozenset((*_TEXTS, "input_image")), "input_text", "input_image")
# What one of many engines would have to remember, and what would go past the checks of `input`.
_ELSEWHERE = ("conversation", "previous_input_messages", "previous_response", "previous_response_id")
_REMEMBERS = "engines behind a balancer remember no request; send the whole conversation in `input`"
_LATER = "engines behind a balancer cannot be asked for a response later; wait for it, or have it streamed"

_PRELUDES = frozenset(("response.created", "response.in_progress", "response.queued"))
# They repeat the request's instructions and schema. Longer ones pass at once: so much is not held back.
_PRELUDE_BYTES = 16 * 1024
_LAST = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
_NOTHING = (b"null", b'""')


class _Part(Part):
    file_data: msgspec.Raw = NULL
    file_id: msgspec.Raw = NULL
    file_url: msgspec.Raw = NULL

    def is_file(self) -> bool:
        return Part.is_file(self) or any(map(is_set, (self.file_data, self.file_id, self.file_url)))

    def other_media(self, passed: Collection[str | None]) -> bool:
        return Part.other_media(self, passed) or self.is_file()


class _Item(msgspec.Struct):
    """One of `input`: a message, or what a model or a tool has said before."""

    type: str | None = None
    role: str | None = None
    content: str | list[str | _Part] | None = None
    output: str | list[str | _Part] | None = None


class _Tool(msgspec.Struct):
    type: str | None = None
    name: Any = None
    parameters: msgspec.Raw = NULL


class _Body(Reach):
    model: str | None = None
    stream: bool | None = None
    input: str | list[_Item] | None = None
    tools: list[_Tool] | None = None
    # Of these a wrong type is the engine's to refuse, so that its message is the one clients know.
    background: msgspec.Raw = NULL
    conversation: msgspec.Raw = NULL
    instructions: msgspec.Raw = NULL
    metadata: msgspec.Raw = NULL
    previous_input_messages: msgspec.Raw = NULL
    previous_response: msgspec.Raw = NULL
    previous_response_id: msgspec.Raw = NULL
    structured_outputs: msgspec.Raw = NULL
    text: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL


class _Response(msgspec.Struct):
    """A response of which nothing is built that an engine could make large."""

    output: msgspec.Raw = NULL
    status: msgspec.Raw = NULL
    usage: msgspec.Raw = NULL
    error: msgspec.Raw = NULL

    def is_response(self) -> bool:
        return bytes(memoryview(self.output)[:1]) == b"["

    def is_aborted(self) -> bool:
        """Whether the engine broke it off, which vLLM does while it shuts down."""
        return bytes(self.status) == b'"cancelled"'

    def counts(self) -> Usage | None:
        usage = object_of(self.usage) if len(memoryview(self.usage)) <= MAX_USAGE_BYTES else None
        return usage_of(usage, prompt="input_tokens", completion="output_tokens")


class _Event(msgspec.Struct):
    """An event of a stream; see _Response."""

    type: str | None = None
    sequence_number: Any = None
    delta: msgspec.Raw = NULL
    response: msgspec.Raw = NULL
    error: msgspec.Raw = NULL
    code: msgspec.Raw = NULL


_BODY = msgspec.json.Decoder(_Body)
_RESPONSE = msgspec.json.Decoder(_Response)
_EVENT = msgspec.json.Decoder(_Event)


def parse_request(body: bytes, *, max_images: int, from_gateway: bool = False) -> CompletionRequest:
    """Read a request for a response without building its image strings; see openai.parse_request.

    Raises:
        BadRequest: invalid JSON, a missing or mistyped field, a refused part, tool or setting, too many
            images, or it needs what an earlier request left behind.
    """

    def read(lifted: Lifted) -> CompletionRequest:
        return _read(body, lifted, max_images, from_gateway)

    return parse_lifted(body, max_images, read)


def read_answer(body: bytes) -> WholeAnswer | None:
    """Read a response that is not streamed; None where it is none."""
    answer: _Response | None = sent(_RESPONSE, body)
    if answer is None or not answer.is_response():
        return None
    return WholeAnswer(answer.counts(), is_aborted=answer.is_aborted())


def read_chunk(data: bytes) -> StreamChunk:
    """Read one event's data; of what is no event of a response nothing is known, so that it is passed on."""
    event: _Event | None = sent(_EVENT, data)
    if event is None:
        return StreamChunk()
    kind, number = event.type or "", event.sequence_number
    place = number if isinstance(number, int) and 0 <= number < 2**53 else 0
    if kind == "error" or is_set(event.error):
        code = object_of(event.error).get("code") if is_set(event.error) else member_of(event.code)
        return StreamChunk(is_error=True, is_last=True, error_status=_status(code), place=place)
    if kind in _LAST:
        response: _Response = sent(_RESPONSE, bytes(event.response)) or _Response()
        failed = kind == "response.failed"
        return StreamChunk(
            is_chunk=True,
            usage=response.counts(),
            is_aborted=response.is_aborted(),
            is_error=failed,
            error_status=_status(object_of(response.error).get("code")) if failed else 0,
            is_last=True,
            place=place,
        )
    return StreamChunk(
        is_chunk=kind.startswith("response."),
        has_output=kind.endswith(".delta") and bytes(event.delta) not in _NOTHING,
        is_prelude=kind in _PRELUDES and len(data) <= _PRELUDE_BYTES,
        place=place,
    )


def error_event(error: GatewayError, place: int) -> bytes:
    """Return what a stream of events that breaks off ends with: the API's own error event.

    It has the error object, too, by which OpenAI's clients know that the stream has failed.
    """
    fields = {
        "type": "error",
        "sequence_number": place,
        "code": error.code,
        "message": error.message,
        "param": error.param,
    }
    return b"event: error\ndata: %s,%s\n\n" % (msgspec.json.encode(fields)[:-1], error_body(error)[1:])


def _read(body: bytes, lifted: Lifted, max_images: int, from_gateway: bool) -> CompletionRequest:
    fields: _Body = decode_body(_BODY, lifted.skeleton)
    check_reach(fields)
    _check_alone(fields)
    images: list[ImagePart] = []
    texts: dict[str | None, list[str]] = {"user": [], "system": []}
    if isinstance(instructions := member_of(fields.instructions), str):
        texts["system"].append(instructions)
    if isinstance(fields.input, str):
        texts["user"].append(fields.input)
    elif fields.input:
        for index, item in enumerate(fields.input):
            _read_item(item, f"input[{index}]", texts, images, lifted, from_gateway)
    else:
        raise BadRequest("`input` is missing or empty; send text, or at least one message", param="input")
    check_count(images, max_images, "input")
    chars = None if from_gateway else MAX_TEXT_CHARS
    asked = object_of(fields.text).get("format")
    form = asked if isinstance(asked, dict) else {}
    others = object_of(fields.structured_outputs)
    facts = SortFacts(
        metadata=route_of(fields.metadata),
        prompt="\n".join(texts["user"])[:chars],
        system="\n".join(texts["system"])[:chars],
        schema=_schema(fields, form, others),
        wants_json=form.get("type") == "json_object" or bool(others.get("json_object")),
        has_image=bool(images),
    )
    return CompletionRequest(
        body=body,
        lifted=lifted,
        model=fields.model,
        stream=bool(fields.stream),
        include_usage=True,  # the last event has it
        has_options=False,
        merged=True,
        images=tuple(images),
        facts=facts,
        holder="input",
    )


def _check_alone(fields: _Body) -> None:
    """Refuse what needs another request, or tools of the engine's own."""
    for name in _ELSEWHERE:
        if is_set(getattr(fields, name)):
            raise BadRequest(f"`{name}`: {_REMEMBERS}", param=name, code="unsupported_parameter")
    if is_set(fields.background) and bytes(fields.background) != b"false":
        raise BadRequest(f"`background`: {_LATER}", param="background", code="unsupported_parameter")
    for index, tool in enumerate(fields.tools or ()):
        if tool.type != "function":
            raise BadRequest(
                f"`tools[{index}]`: its type must be `function`, which the client calls itself",
                param=f"tools[{index}]",
                code="unsupported_parameter",
            )


def _read_item(
    item: _Item,
    where: str,
    texts: dict[str | None, list[str]],
    images: list[ImagePart],
    lifted: Lifted,
    may_name: bool,
) -> None:
    if item.type == "item_reference":
        raise BadRequest(f"{where}: {_REMEMBERS}", param=where, code="unsupported_parameter")
    spoken = texts.setdefault("system" if item.role == "developer" else item.role, [])
    spoken += read_content(item.content, f"{where}.content", _PARTS, images, lifted, may_name=may_name)
    before = len(images)
    read_content(item.output, f"{where}.output", _PARTS, images, lifted, may_name=may_name)
    if len(images) > before:
        raise BadRequest(
            f"{where}.output: must be text; send images as `input_image` parts of a message",
            param=f"{where}.output",
            code="unsupported_content_part",
        )


def _schema(fields: _Body, form: Mapping[str, Any], others: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema the answer must follow."""
    found = form.get("schema") if form.get("type") == "json_schema" else None
    schema = first_schema((found, others.get("json")))
    return _forced_tool_schema(fields) if schema is None else schema


def _forced_tool_schema(fields: _Body) -> Mapping[str, Any] | None:
    choice = member_of(fields.tool_choice)
    named = choice.get("name") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if choice != "required" and named is None:
        return None
    for tool in fields.tools or ():
        if named in (None, tool.name):
            return object_of(tool.parameters)
    return None


def _status(code: object) -> int:
    """The status that an error's code is or stands for; 0 where the engine is to blame."""
    if isinstance(code, str):
        return 400 if code.startswith("invalid") else 0
    return code if isinstance(code, int) and 400 <= code < 600 else 0


RESPONSES = Dialect(read_answer, read_chunk, error_event, "response.completed")
