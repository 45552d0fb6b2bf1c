"""OpenAI's request, error and stream formats, read only as far as the gateway needs and never rebuilt."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.errors import BadRequest, GatewayError
from gateway.model import SortFacts, Speculation, Usage
from gateway.wire import sse
from gateway.wire.lift import Lifted, lift
from gateway.wire.openai.parts import (
    MAX_TEXT_CHARS,
    ImagePart,
    Kinds,
    Part,
    Reach,
    check_count,
    check_reach,
    first_schema,
    read_content,
    route_of,
)
from gateway.wire.raw_json import MEMBERS, NULL, built, decode_body, elements, member_of, object_of, sent
from gateway.wire.vllm.engine import read_speculation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gateway.model import Buffer

_NONE = msgspec.Raw()
_PARTS = Kinds(frozenset((None, "text", "image_url", "refusal", "thinking")), "text", "image_url")
# More elements than an event or an answer's usage has; such an event is passed on and hardly looked at.
_MAX_CHUNK_ELEMENTS = 10_000
MAX_USAGE_BYTES = 4096
# More than any model's context holds.
_MAX_TOKENS = 2**24
# A request has one place on an engine, however many answers it asks for there; a page has one right answer.
_MAX_ANSWERS = 16
# vLLM's reason to finish a request that came while it shut down. In a text its quotes would be escaped.
_ABORTED = "abort"
_IS_ABORTED = b'"finish_reason":"abort"'
_LARGE_PIECE_BYTES = 4096
_ASK_USAGE = b',"stream_options":{"include_usage":true}}'
# Where an image's URL stands in a message.
_URL_PATH = ("content", "image_url", "url")


class _Message(msgspec.Struct):
    role: str
    content: str | list[str | Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(Reach):
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | msgspec.UnsetType | None = msgspec.UNSET
    stream_interval: Any = None
    n: int | float | None = None
    messages: list[_Message] | None = None
    prompt: msgspec.Raw = NULL
    # Of these a wrong type is the engine's to refuse, so that its message is the one clients know.
    chat_template_kwargs: msgspec.Raw = NULL
    guided_json: msgspec.Raw = NULL
    metadata: msgspec.Raw = NULL
    response_format: msgspec.Raw = NULL
    structured_outputs: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL


class _Delta(msgspec.Struct):
    role: Any = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None

    def has_output(self) -> bool:
        return bool(self.content or self.parsed())

    def parsed(self) -> bool:
        """Whether it went through one of the engine's parsers."""
        return bool(self.tool_calls or self.reasoning or self.reasoning_content)


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: _Delta | None = None
    text: Any = None
    finish_reason: Any = None
    stop_reason: Any = None

    def has_output(self) -> bool:
        return bool(self.text or (self.delta and self.delta.has_output()))

    def opens(self) -> bool:
        """Whether it only names the role, before the first token."""
        return bool(self.delta and self.delta.role and self.finish_reason is None and not self.has_output())

    def uncountable(self) -> bool:
        return (
            self.index != 0 or isinstance(self.stop_reason, str) or bool(self.delta and self.delta.parsed())
        )


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    metrics: msgspec.Raw = _NONE
    error: Any = None


class _Outline(msgspec.Struct):
    """A chunk or an answer of which nothing is built that an engine could make large."""

    choices: msgspec.Raw = NULL
    usage: msgspec.Raw = NULL
    metrics: msgspec.Raw = NULL
    error: msgspec.Raw = NULL

    def is_completion(self) -> bool:
        return bytes(memoryview(self.choices)[:1]) == b"["


_BODY = msgspec.json.Decoder(_Body)
_CHUNK = msgspec.json.Decoder(_Chunk)
_OUTLINE = msgspec.json.Decoder(_Outline)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(slots=True)
class CompletionRequest:
    """A request for a completion or a response, read but not rebuilt.

    Attributes:
        body: the body as received.
        lifted: the same without its images.
        model: the requested model, None where the client named none.
        stream: a stream is asked for.
        include_usage: the client itself asked for the usage chunk.
        has_options: it has `stream_options`.
        merged: its stream's chunks tell no steps: it asked for several in each (vLLM's `stream_interval`).
        images: the image parts, in order.
        facts: what sorting needs to know.
        holder: the member that has the images.
    """

    body: bytes
    lifted: Lifted
    model: str | None
    stream: bool
    include_usage: bool
    has_options: bool
    merged: bool
    images: tuple[ImagePart, ...]
    facts: SortFacts
    holder: str = "messages"


class WholeAnswer(msgspec.Struct, frozen=True):
    """An answer that is not streamed.

    Attributes:
        usage: token usage, where it is told.
        speculation: what was drafted for it, where that is told.
        is_aborted: the engine broke it off, and says so as a reason to finish.
    """

    usage: Usage | None = None
    speculation: Speculation | None = None
    is_aborted: bool = False


class StreamChunk(msgspec.Struct, frozen=True):
    """One event of a stream.

    Attributes:
        is_chunk: it is a chunk of a completion, or an event of a response.
        usage: token usage, where it is told.
        is_usage_only: it carries usage and no choices: the chunk that `include_usage` adds.
        has_output: it carries generated text.
        is_step: it carries what a step of the engine added, be it without text; the chunk that only names
            the role does not.
        is_uncountable: its stream's chunks do not tell its steps: it is one of several choices, was ended by
            a stop string, behind which tokens were thrown away, or passed a parser, which holds chunks back.
        speculation: what was drafted for the whole answer, where that is told.
        is_aborted: the engine broke the answer off, and says so as a reason to finish.
        is_error: it reports a failure.
        error_status: its `error.code`, where that is an HTTP status; 0 where it is none.
        is_prelude: it says no more than that the request has been taken: nothing has been done for it yet.
        is_last: the stream is over with it, without an end mark of its own.
        place: its number in the stream, where it has one.
    """

    is_chunk: bool = False
    usage: Usage | None = None
    is_usage_only: bool = False
    has_output: bool = False
    is_step: bool = False
    is_uncountable: bool = False
    speculation: Speculation | None = None
    is_aborted: bool = False
    is_error: bool = False
    error_status: int = 0
    is_prelude: bool = False
    is_last: bool = False
    place: int = 0

    @property
    def is_clients_error(self) -> bool:
        """Whether it reports a failure that the request itself is to blame for."""
        return 400 <= self.error_status < 500


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an endpoint's answers are read.

    Attributes:
        read_answer: reads one that is not streamed; None where it is none.
        read_chunk: reads one event's data.
        error_event: returns what a stream that breaks off ends with, and its number in the stream.
        end: what a stream ends with, in words.
    """

    read_answer: Callable[[bytes], WholeAnswer | None]
    read_chunk: Callable[[bytes], StreamChunk]
    error_event: Callable[[GatewayError, int], bytes]
    end: str


def parse_request(
    body: bytes, *, chat: bool, max_images: int, from_gateway: bool = False
) -> CompletionRequest:
    """Read a completion request without building its image strings.

    Args:
        body: as received.
        chat: it has messages; else a prompt.
        max_images: the most it may have.
        from_gateway: an engine reads it: who sends it may name images (`uuid`), and all of its text counts.

    Raises:
        BadRequest: invalid JSON, a missing or mistyped field, a refused part or setting, too many images.
    """

    def read(lifted: Lifted) -> CompletionRequest:
        return _read(body, lifted, chat, max_images, from_gateway)

    return parse_lifted(body, max_images, read)


def parse_lifted(body: bytes, most: int, read: Callable[[Lifted], CompletionRequest]) -> CompletionRequest:
    """Read a request, its large images cut out of it where that can be.

    Args:
        body: as received.
        most: how many images it may have.
        read: reads what is left of it.

    Raises:
        BadRequest: what `read` raises of the whole body.
    """
    lifted = lift(body, most)
    if lifted:
        # What is refused is refused by what was sent, so that the message tells places in it.
        with suppress(BadRequest):
            request = read(lifted)
            # One that is no image's, but in a text or a schema, has to be read with that.
            if sum(part.text in lifted.texts for part in request.images) == len(lifted.texts):
                return request
    return read(Lifted(body, {}))


def _read(body: bytes, lifted: Lifted, chat: bool, max_images: int, from_gateway: bool) -> CompletionRequest:
    fields: _Body = decode_body(_BODY, lifted.skeleton)
    check_reach(fields)
    images: list[ImagePart] = []
    texts: dict[str, list[str]] = {}
    if chat:
        if not fields.messages:
            raise BadRequest("`messages` is missing or empty; send at least one message", param="messages")
        for index, message in enumerate(fields.messages):
            _read_message(message, f"messages[{index}].content", texts, images, lifted, from_gateway)
    check_count(images, max_images, "messages")
    prompt = built(fields.prompt)
    answers = (fields.n or 1) * (1 if chat else _prompts(prompt))
    if answers > _MAX_ANSWERS:
        raise BadRequest(
            f"`n` and the prompts ask for {answers} answers; at most {_MAX_ANSWERS} are given",
            param="n" if fields.n not in (None, 1) else "prompt",
            code="unsupported_parameter",
        )
    return CompletionRequest(
        body=body,
        lifted=lifted,
        model=fields.model,
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        has_options=fields.stream_options is not msgspec.UNSET,
        merged=fields.stream_interval not in (None, 1),
        images=tuple(images),
        facts=_facts(
            fields,
            prompt,
            texts,
            has_image=bool(images),
            chars=None if from_gateway else MAX_TEXT_CHARS,
        ),
    )


def rewritten(
    request: CompletionRequest,
    *,
    model: str | None = None,
    repaired: Mapping[bytes, bytes] | None = None,
) -> tuple[Buffer, ...]:
    """Return the body an engine gets, in pieces: the client's own bytes wherever nothing has to change.

    A stream whose client did not ask for token usage asks for it here. Nothing large is copied.

    Args:
        request: the request as received.
        model: the name that replaces an alias.
        repaired: image URLs to replace, JSON text by JSON text; elsewhere such a text stays.
    """
    ask_usage = request.stream and not request.include_usage
    if model is None and not repaired and not ask_usage:
        return (request.body,)
    if model is None and not repaired and not request.has_options:
        # The most frequent change: 10 us cheaper than the way that any change can be made.
        return memoryview(request.body)[: request.body.rindex(b"}")], _ASK_USAGE
    members: dict[str, bytes | msgspec.Raw] = dict(MEMBERS.decode(request.lifted.skeleton))
    if model is not None:
        members["model"] = msgspec.json.encode(model)
    if ask_usage:
        options = built(members.get("stream_options", NULL)) or {}
        members["stream_options"] = msgspec.json.encode({**options, "include_usage": True})
    pieces = _whole(members)
    texts, holder = request.lifted.texts, request.holder
    if repaired:
        pieces[holder] = _with_urls(memoryview(members[holder]), {**texts, **repaired}, _URL_PATH)
    elif texts:
        pieces[holder] = _put_back(bytes(members[holder]), texts)
    return tuple(_gathered(_joined(pieces)))


def read_answer(body: bytes) -> WholeAnswer | None:
    """Read an answer that is not streamed; None where it is no completion."""
    answer: _Outline | None = sent(_OUTLINE, body)
    if answer is None or not answer.is_completion():
        return None
    usage = object_of(answer.usage) if len(memoryview(answer.usage)) <= MAX_USAGE_BYTES else None
    return WholeAnswer(usage_of(usage), read_speculation(answer.metrics), _IS_ABORTED in body)


def read_error_message(body: bytes) -> str:
    """Return the message of an engine's error body, at most 500 printable characters; empty without one."""
    error = object_of(body).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return ""
    return "".join(character if character.isprintable() else " " for character in message[:500])


def read_chunk(data: bytes) -> StreamChunk:
    """Read one event's data; of what is no chunk nothing is known, so that it is passed on."""
    if elements(data) > _MAX_CHUNK_ELEMENTS:
        outline: _Outline | None = sent(_OUTLINE, data)
        return StreamChunk(
            is_chunk=outline is not None and outline.is_completion(),
            has_output=True,
            is_uncountable=True,
            is_error=outline is not None and bytes(outline.error) != b"null",
        )
    try:
        chunk = _CHUNK.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return StreamChunk()
    has_output = is_step = is_uncountable = is_aborted = False
    for choice in chunk.choices or ():
        has_output |= choice.has_output()
        is_step |= not choice.opens()
        is_uncountable |= choice.uncountable()
        is_aborted |= choice.finish_reason == _ABORTED
    return StreamChunk(
        is_chunk=chunk.choices is not None,
        usage=usage_of(chunk.usage),
        is_usage_only=bool(chunk.usage) and not chunk.choices,
        has_output=has_output,
        is_step=is_step,
        is_uncountable=is_uncountable,
        speculation=read_speculation(chunk.metrics) if chunk.metrics else None,
        is_aborted=is_aborted,
        is_error=chunk.error is not None,
        error_status=_status(chunk.error),
    )


def error_body(error: GatewayError) -> bytes:
    """Return OpenAI's error object for a refusal."""
    fields = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.code,
    }
    return msgspec.json.encode({"error": fields})


def error_event(error: GatewayError, place: int) -> bytes:
    """Return what a stream of chunks that breaks off ends with."""
    return sse.data_event(error_body(error))


def error_headers(error: GatewayError, body: bytes) -> dict[str, str]:
    """Return the headers that go with a refusal's body."""
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return headers


def _read_message(
    message: _Message,
    where: str,
    texts: dict[str, list[str]],
    images: list[ImagePart],
    lifted: Lifted,
    may_name: bool,
) -> None:
    spoken = texts.setdefault("system" if message.role == "developer" else message.role, [])
    spoken += read_content(message.content, where, _PARTS, images, lifted, may_name=may_name)


def _put_back(value: bytes, texts: Mapping[bytes, Buffer]) -> Iterator[Buffer]:
    """Yield a JSON value with what has been cut out of it; all of it, in its order."""
    start = 0
    for mark, text in texts.items():
        at = value.index(mark)
        yield value[start:at]
        yield text
        start = at + len(mark)
    yield value[start:]


def _with_urls(value: memoryview, urls: Mapping[bytes, Buffer], path: Sequence[str]) -> Iterator[Buffer]:
    """Yield a JSON value with other strings where an image's URL may stand, which `path` leads to."""
    opening = bytes(value[:1])
    if opening == b"[":
        yield b"["
        for place, one in enumerate(_ELEMENTS.decode(value)):
            if place:
                yield b","
            yield from _with_urls(memoryview(one), urls, path)
        yield b"]"
        return
    members = MEMBERS.decode(value) if opening == b"{" and path else {}
    if path and path[0] in members:
        inner = _with_urls(memoryview(members[path[0]]), urls, path[1:])
        yield from _joined({**_whole(members), path[0]: inner})
        return
    # Only where it may be a URL: texts are long.
    yield urls.get(bytes(value), value) if len(path) < 2 else value


def _whole(members: Mapping[str, bytes | msgspec.Raw]) -> dict[str, Iterable[Buffer]]:
    return {name: (memoryview(value),) for name, value in members.items()}


def _joined(members: Mapping[str, Iterable[Buffer]]) -> Iterator[Buffer]:
    yield b"{"
    for place, (name, pieces) in enumerate(members.items()):
        yield b"%s%s:" % (b"," if place else b"", msgspec.json.encode(name))
        yield from pieces
    yield b"}"


def _gathered(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join what is small: a piece more costs a call more on its way, a large one copied costs more."""
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < _LARGE_PIECE_BYTES:
            small.append(piece)
        else:
            yield b"".join(small)
            yield piece
            small = []
    yield b"".join(small)


def _prompts(prompt: object) -> int:
    """How many prompts there are: a list may hold texts, or lists of tokens, or the tokens of one."""
    if not isinstance(prompt, list) or all(isinstance(token, int) for token in prompt):
        return 1
    return len(prompt)


def _facts(
    fields: _Body, prompt: object, texts: Mapping[str, list[str]], *, has_image: bool, chars: int | None
) -> SortFacts:
    template = object_of(fields.chat_template_kwargs)
    mode = template.get("mode")
    return SortFacts(
        metadata=route_of(fields.metadata),
        prompt="\n".join(texts.get("user", [prompt] if isinstance(prompt, str) else ()))[:chars],
        system="\n".join(texts.get("system", ()))[:chars],
        schema=_schema(fields),
        wants_json=object_of(fields.response_format).get("type") == "json_object"
        or bool(object_of(fields.structured_outputs).get("json_object")),
        template=template.get("template"),
        template_mode=mode if isinstance(mode, str) else None,
        has_image=has_image,
    )


def _schema(fields: _Body) -> Mapping[str, Any] | None:
    """The JSON schema the answer must follow, wherever clients put it."""
    response_format = object_of(fields.response_format)
    wrapper = response_format.get("json_schema") if response_format.get("type") == "json_schema" else None
    found = (
        wrapper.get("schema") if isinstance(wrapper, dict) else None,
        object_of(fields.structured_outputs).get("json"),
        member_of(fields.guided_json),
    )
    schema = first_schema(found)
    return _forced_tool_schema(fields) if schema is None else schema


def _forced_tool_schema(fields: _Body) -> Mapping[str, Any] | None:
    choice = member_of(fields.tool_choice)
    named = choice.get("function") if isinstance(choice, dict) else None
    if choice != "required" and not isinstance(named, dict):
        return None
    tools = member_of(fields.tools)
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and named in (None, {"name": function.get("name")}):
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, dict) else {}
    return None


def usage_of(
    usage: object, *, prompt: str = "prompt_tokens", completion: str = "completion_tokens"
) -> Usage | None:
    """Return an answer's token counts by their names; None where there are none, 0 for an absurd one."""
    if not (usage and isinstance(usage, dict)):
        return None
    counts = (usage.get(prompt), usage.get(completion))
    return Usage(*(count if isinstance(count, int) and 0 < count < _MAX_TOKENS else 0 for count in counts))


def _status(error: object) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 0


COMPLETIONS = Dialect(read_answer, read_chunk, error_event, sse.DONE.decode())
