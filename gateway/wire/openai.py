"""OpenAI's request, error and stream formats, read only as far as the gateway needs and never rebuilt."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.errors import BadRequest, GatewayError
from gateway.model import SortFacts, Speculation, Usage
from gateway.wire.lift import Lifted, lift
from gateway.wire.vllm import read_speculation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gateway.model import Buffer

_NULL = msgspec.Raw(b"null")
_NONE = msgspec.Raw()
_PASSED_PARTS = frozenset((None, "text", "image_url", "refusal", "thinking"))
# More elements than any request has that a model's context can hold; reading them would block for seconds.
_MAX_ELEMENTS = 50_000
# More elements than an event or an answer's usage has; such an event is passed on and hardly looked at.
_MAX_CHUNK_ELEMENTS = 10_000
_MAX_USAGE_BYTES = 4096
# Text and members that are longer are the engine's alone: what is built of them is kept while images are
# looked at, and takes up to four times their bytes.
_MAX_TEXT_CHARS = 65_536
_MAX_MEMBER_BYTES = 2**20
# More than any model's context holds.
_MAX_TOKENS = 2**24
# A request has one place on an engine, however many answers it asks for there; a page has one right answer.
_MAX_ANSWERS = 16
# vLLM's reason to finish a request that came while it shut down. In a text its quotes would be escaped.
_ABORTED = "abort"
_IS_ABORTED = b'"finish_reason":"abort"'
# Engines that split their work find each other by the first two, in a member or among vLLM's extra arguments.
# The third is a stored tensor, which engines that are set up to take it load.
_ENGINES_OWN = ("ec_transfer_params", "kv_transfer_params", "prompt_embeds")
# Settings of an image's processing are numbers and plain words. Anything else might be taken for a URL or a
# path: the libraries behind load images from both.
_WORD = re.compile(r"[A-Za-z0-9_+-]{0,64}")
# What no limit on images sees: to how many pixels a small one may be blown up by them. Models ask for fewer.
_MOST = {"height": 2**12, "width": 2**12, "min": 2**21, "shortest": 2**21, "": 2**24}
_LARGE_PIECE_BYTES = 4096
_ASK_USAGE = b',"stream_options":{"include_usage":true}}'
# Where an image's URL stands in a message.
_URL_PATH = ("content", "image_url", "url")
_AT = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    image_url: msgspec.Raw = _NULL
    # Fields by which engines take other media, whatever `type` says.
    audio_embeds: msgspec.Raw = _NULL
    audio_url: msgspec.Raw = _NULL
    file: msgspec.Raw = _NULL
    image_embeds: msgspec.Raw = _NULL
    image_pil: msgspec.Raw = _NULL
    input_audio: msgspec.Raw = _NULL
    input_image: msgspec.Raw = _NULL
    prompt_embeds: msgspec.Raw = _NULL
    video_embeds: msgspec.Raw = _NULL
    video_url: msgspec.Raw = _NULL
    # What an image is called in vLLM's caches: by it alone another client's would be read.
    uuid: msgspec.Raw = _NULL

    def other_media(self) -> bool:
        fields = (
            self.audio_embeds,
            self.audio_url,
            self.file,
            self.image_embeds,
            self.image_pil,
            self.input_audio,
            self.input_image,
            self.prompt_embeds,
            self.video_embeds,
            self.video_url,
        )
        return self.type not in _PASSED_PARTS or any(map(_is_set, fields))


class _Message(msgspec.Struct):
    role: str
    content: str | list[str | _Part] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | msgspec.UnsetType | None = msgspec.UNSET
    stream_interval: Any = None
    n: int | float | None = None
    messages: list[_Message] | None = None
    prompt: msgspec.Raw = _NULL
    # Of these a wrong type is the engine's to refuse, so that its message is the one clients know.
    chat_template_kwargs: msgspec.Raw = _NULL
    guided_json: msgspec.Raw = _NULL
    metadata: msgspec.Raw = _NULL
    response_format: msgspec.Raw = _NULL
    structured_outputs: msgspec.Raw = _NULL
    tool_choice: msgspec.Raw = _NULL
    tools: msgspec.Raw = _NULL
    # What could make an engine connect to somewhere, or open a file, where it is set up to trust requests.
    ec_transfer_params: msgspec.Raw = _NULL
    kv_transfer_params: msgspec.Raw = _NULL
    media_io_kwargs: msgspec.Raw = _NULL
    mm_processor_kwargs: msgspec.Raw = _NULL
    prompt_embeds: msgspec.Raw = _NULL
    vllm_xargs: msgspec.Raw = _NULL


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

    choices: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    metrics: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL

    def is_completion(self) -> bool:
        return bytes(memoryview(self.choices)[:1]) == b"["


_BODY = msgspec.json.Decoder(_Body)
_CHUNK = msgspec.json.Decoder(_Chunk)
_STRING = msgspec.json.Decoder(str)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OUTLINE = msgspec.json.Decoder(_Outline)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()


@dataclass(slots=True)
class ImagePart:
    """One image of a request.

    Attributes:
        url: its URL.
        param: the field's name.
        text: the JSON text by which `rewritten` knows the URL, where that is not the URL in quotes.
        data: what the URL decodes to, where that is known by now; for whoever takes it away.
    """

    url: Buffer
    param: str
    text: bytes | None = None
    data: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The JSON text by which `rewritten` knows it."""
        return b'"%s"' % self.url if self.text is None else self.text


@dataclass(slots=True)
class CompletionRequest:
    """A chat or text completion, read but not rebuilt.

    Attributes:
        body: the body as received.
        lifted: the same without its images.
        model: the requested model, None where the client named none.
        stream: a stream is asked for.
        include_usage: the client itself asked for the usage chunk.
        has_options: it has `stream_options`.
        merged: it asked that its stream's chunks carry several steps (vLLM's `stream_interval`).
        images: the image parts, in order.
        facts: what sorting needs to know.
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
        is_chunk: it is a chunk of a completion.
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

    @property
    def is_clients_error(self) -> bool:
        """Whether it reports a failure that the request itself is to blame for."""
        return 400 <= self.error_status < 500


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
    lifted = lift(body, max_images)
    if lifted:
        # What is refused is refused by what was sent, so that the message tells places in it.
        with suppress(BadRequest):
            request = _read(body, lifted, chat, max_images, from_gateway)
            # One that is no image's, but in a text or a schema, has to be read with that.
            if sum(part.text in lifted.texts for part in request.images) == len(lifted.texts):
                return request
    return _read(body, Lifted(body, {}), chat, max_images, from_gateway)


def _read(body: bytes, lifted: Lifted, chat: bool, max_images: int, from_gateway: bool) -> CompletionRequest:
    text = lifted.skeleton
    if _elements(text) > _MAX_ELEMENTS:
        raise BadRequest(f"the body has more than {_MAX_ELEMENTS:,} elements", code="invalid_json")
    fields: _Body = _decode(_BODY, text)
    _check_reach(fields)
    images: list[ImagePart] = []
    texts: dict[str, list[str]] = {}
    if chat:
        if not fields.messages:
            raise BadRequest("`messages` is missing or empty; send at least one message", param="messages")
        for index, message in enumerate(fields.messages):
            _read_message(message, f"messages[{index}].content", texts, images, lifted, from_gateway)
    if len(images) > max_images:
        raise BadRequest(
            f"the request has {len(images)} images; at most {max_images} are accepted",
            param="messages",
            code="too_many_images",
        )
    prompt = _built(fields.prompt)
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
            chars=None if from_gateway else _MAX_TEXT_CHARS,
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
    members: dict[str, bytes | msgspec.Raw] = dict(_MEMBERS.decode(request.lifted.skeleton))
    if model is not None:
        members["model"] = msgspec.json.encode(model)
    if ask_usage:
        options = _built(members.get("stream_options", _NULL)) or {}
        members["stream_options"] = msgspec.json.encode({**options, "include_usage": True})
    pieces = _whole(members)
    texts = request.lifted.texts
    if repaired:
        pieces["messages"] = _with_urls(memoryview(members["messages"]), {**texts, **repaired}, _URL_PATH)
    elif texts:
        pieces["messages"] = _put_back(bytes(members["messages"]), texts)
    return tuple(_gathered(_joined(pieces)))


def read_answer(body: bytes) -> WholeAnswer | None:
    """Read an answer that is not streamed; None where it is no completion."""
    try:
        if not body.isascii():
            body.decode()  # what is passed over is not checked for this
    except UnicodeDecodeError:
        return None
    answer = _outline(body)
    if answer is None or not answer.is_completion():
        return None
    usage = _object(answer.usage) if len(memoryview(answer.usage)) <= _MAX_USAGE_BYTES else None
    return WholeAnswer(_usage(usage), read_speculation(answer.metrics), _IS_ABORTED in body)


def read_error_message(body: bytes) -> str:
    """Return the message of an engine's error body, at most 500 printable characters; empty without one."""
    error = _object(body).get("error")
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return ""
    return "".join(character if character.isprintable() else " " for character in message[:500])


def read_chunk(data: bytes) -> StreamChunk:
    """Read one event's data; of what is no chunk nothing is known, so that it is passed on."""
    if _elements(data) > _MAX_CHUNK_ELEMENTS:
        outline = _outline(data)
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
        usage=_usage(chunk.usage),
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
    if not isinstance(message.content, list):
        spoken.append(message.content or "")
        return
    for place, part in enumerate(message.content):
        if isinstance(part, str):
            spoken.append(part)
            continue
        if part.other_media() or not (may_name or not _is_set(part.uuid)):
            raise BadRequest(
                f"{where}[{place}]: only `text` and `image_url` parts are accepted, without a `uuid`; "
                "send document pages as images",
                param=f"{where}[{place}]",
                code="unsupported_content_part",
            )
        if part.text:
            spoken.append(part.text)
        if part.type == "image_url" or _is_set(part.image_url):
            images.append(_image_part(part.image_url, f"{where}[{place}].image_url", lifted))


def _image_part(raw: msgspec.Raw, where: str, lifted: Lifted) -> ImagePart:
    """Take an image's URL out of `{"url": ...}` or, as vLLM accepts too, a bare string."""
    if bytes(memoryview(raw)[:1]) == b"{":
        raw = _decode(_MEMBERS, raw).get("url", _NULL)
    view = memoryview(raw)
    if bytes(view[:1]) != b'"':
        raise BadRequest(f"{where}: `url` must be a string", param=where)
    text = bytes(view)
    if lifted.texts and text in lifted.texts:
        data, lifted.image = lifted.image, None
        return ImagePart(lifted.texts[text][1:-1], where, text, data)
    if b"\\" in text:
        return ImagePart(_decode(_STRING, text).encode(), where, text)
    return ImagePart(view[1:-1], where)


def _check_reach(fields: _Body) -> None:
    """Refuse what could make an engine reach for something."""
    # Not `_any`: engines may build what cannot be built here, such as 1e999.
    extra = _decode(_ANY, bytes(fields.vllm_xargs)) if _is_set(fields.vllm_xargs) else None
    for name in _ENGINES_OWN:
        if _is_set(getattr(fields, name)) or (isinstance(extra, dict) and name in extra):
            raise BadRequest(f"`{name}` is not for clients", param=name, code="unsupported_parameter")
    for name in ("media_io_kwargs", "mm_processor_kwargs"):
        settings = getattr(fields, name)
        left = [("", _decode(_ANY, bytes(settings)))] if _is_set(settings) else []
        while left:
            key, value = left.pop()
            most = next(most for part, most in _MOST.items() if part in key)
            if isinstance(value, int | float) and value > most:
                raise BadRequest(
                    f"`{name}`: {key[:64] or 'a number'} may be at most {most:,}",
                    param=name,
                    code="unsupported_parameter",
                )
            if isinstance(value, str) and not _WORD.fullmatch(value):
                raise BadRequest(
                    f"`{name}` may hold numbers, true, false and plain words only",
                    param=name,
                    code="unsupported_parameter",
                )
            if isinstance(value, dict):
                left += value.items()
            elif isinstance(value, list):
                left += ((key, item) for item in value)


def _put_back(value: bytes, texts: Mapping[bytes, Buffer]) -> Iterator[Buffer]:
    """Yield a JSON value with what has been cut out of it; all of it, in its order."""
    start = 0
    for mark, text in texts.items():
        at = value.index(mark)
        yield value[start:at]
        yield text
        start = at + len(mark)
    yield value[start:]


def _is_set(member: msgspec.Raw) -> bool:
    # Most are absent, and asking for the default itself first is a third of the work.
    return member is not _NULL and bytes(member) != b"null"


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
    members = _MEMBERS.decode(value) if opening == b"{" and path else {}
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
    template = _object(fields.chat_template_kwargs)
    mode = template.get("mode")
    route = _object(fields.metadata).get("ocr_route")
    if route is not None and not isinstance(route, str):
        raise BadRequest("`metadata.ocr_route` must be a string", param="metadata.ocr_route")
    return SortFacts(
        metadata=route,
        prompt="\n".join(texts.get("user", [prompt] if isinstance(prompt, str) else ()))[:chars],
        system="\n".join(texts.get("system", ()))[:chars],
        schema=_schema(fields),
        wants_json=_object(fields.response_format).get("type") == "json_object"
        or bool(_object(fields.structured_outputs).get("json_object")),
        template=template.get("template"),
        template_mode=mode if isinstance(mode, str) else None,
        has_image=has_image,
    )


def _schema(fields: _Body) -> Mapping[str, Any] | None:
    """The JSON schema the answer must follow, wherever clients put it."""
    response_format = _object(fields.response_format)
    wrapper = response_format.get("json_schema") if response_format.get("type") == "json_schema" else None
    for schema in (
        wrapper.get("schema") if isinstance(wrapper, dict) else None,
        _object(fields.structured_outputs).get("json"),
        _any(fields.guided_json),
    ):
        if isinstance(schema, dict):
            return schema
        if isinstance(schema, str):
            text = schema.encode()
            if _elements(text) <= _MAX_ELEMENTS and (parsed := _object(text)):
                return parsed
    return _forced_tool_schema(fields)


def _forced_tool_schema(fields: _Body) -> Mapping[str, Any] | None:
    choice = _any(fields.tool_choice)
    named = choice.get("function") if isinstance(choice, dict) else None
    if choice != "required" and not isinstance(named, dict):
        return None
    tools = _any(fields.tools)
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and named in (None, {"name": function.get("name")}):
            parameters = function.get("parameters")
            return parameters if isinstance(parameters, dict) else {}
    return None


def _outline(body: bytes) -> _Outline | None:
    try:
        return _OUTLINE.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _usage(usage: object) -> Usage | None:
    if not (usage and isinstance(usage, dict)):
        return None
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    return Usage(*(count if isinstance(count, int) and 0 < count < _MAX_TOKENS else 0 for count in counts))


def _elements(text: bytes) -> int:
    """What reading JSON costs, nested lists without a comma included."""
    return sum(map(text.count, (b",", b"[", b"{")))


def _status(error: object) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 0


def _object(raw: bytes | msgspec.Raw) -> Mapping[str, Any]:
    value = _any(raw)
    return value if isinstance(value, dict) else {}


def _any(raw: bytes | msgspec.Raw) -> Any:
    """Decode a small member; None where it is none, or cannot be built."""
    return _built(raw) if raw is not _NULL and len(memoryview(raw)) <= _MAX_MEMBER_BYTES else None


def _built(raw: bytes | msgspec.Raw) -> Any:
    """Decode a member; what cannot be built is left to the engine to refuse."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw) -> Any:
    try:
        # Members that are passed over are not checked for this, and would fail on rewriting or at the engine.
        if isinstance(body, bytes) and not body.isascii():
            body.decode()
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        at = _AT.search(str(error))
        param = at.group(1) if at else None
        raise BadRequest(f"{param or 'the body'}: {_AT.sub('', str(error))}", param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from error
