"""A completion, whole or as a stream's chunks, read only as far as the gateway needs and never rebuilt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.model import ToldSpeculation, Usage
from gateway.wire import sse
from gateway.wire.openai.error_shape import error_event, status_of
from gateway.wire.partial_json import NULL, elements
from gateway.wire.vllm.engine import read_speculation

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.errors import GatewayError


_NONE = msgspec.Raw()
# More elements than an event or an answer's usage has; such an event is passed on and hardly looked at.
_MAX_CHUNK_ELEMENTS = 10_000
MAX_USAGE_BYTES = 4096
# More than any model's context holds.
_MAX_TOKENS = 2**24
# vLLM's reason to finish a request that came while it shut down. In a text its quotes would be escaped.
_ABORTED = "abort"
_IS_ABORTED = re.compile(rb'"finish_reason"\s*:\s*"abort"')


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
    object: Any = None
    code: Any = None


class _Outline(msgspec.Struct):
    """A chunk or an answer of which nothing is built that an engine could make large."""

    choices: msgspec.Raw = NULL
    usage: msgspec.Raw = NULL
    metrics: msgspec.Raw = NULL
    error: msgspec.Raw = NULL

    def is_completion(self) -> bool:
        return bytes(memoryview(self.choices)[:1]) == b"["


_CHUNK = msgspec.json.Decoder(_Chunk)
_OUTLINE = msgspec.json.Decoder(_Outline)
_ANY = msgspec.json.Decoder()


class WholeAnswer(msgspec.Struct, frozen=True):
    """An answer that is not streamed.

    Attributes:
        usage: token usage, where it is told.
        speculation: what was drafted for it, where that is told, or why what is told is no figure.
        is_aborted: the engine broke it off, and says so as a reason to finish.
    """

    usage: Usage | None = None
    speculation: ToldSpeculation = None
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
        speculation: what was drafted for the whole answer, where that is told, or why what is told is no
            figure.
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
    speculation: ToldSpeculation = None
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


def sent(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Read JSON that an engine sent; None where it is none, or another than it should be."""
    try:
        if not body.isascii():
            body.decode()  # what is passed over is not checked for this
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_answer(body: bytes) -> WholeAnswer | None:
    """Read an answer that is not streamed; None where it is no completion."""
    answer: _Outline | None = sent(_OUTLINE, body)
    if answer is None or not answer.is_completion():
        return None
    usage = sent(_ANY, bytes(answer.usage)) if len(memoryview(answer.usage)) <= MAX_USAGE_BYTES else None
    is_aborted = _IS_ABORTED.search(body) is not None
    return WholeAnswer(usage_of(usage), read_speculation(answer.metrics), is_aborted)


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
        # A figure that no number holds, say: what it is can still be told.
        outline = sent(_OUTLINE, data)
        if outline is None:
            return StreamChunk()
        is_chunk = outline.is_completion()
        return StreamChunk(
            is_chunk=is_chunk,
            is_usage_only=bytes(outline.choices) == b"[]" and bytes(outline.usage) != b"null",
            is_uncountable=is_chunk,
            is_error=bytes(outline.error) != b"null",
        )
    is_flat_error = chunk.object == "error"
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
        is_error=chunk.error is not None or is_flat_error,
        error_status=status_of({"code": chunk.code} if is_flat_error else chunk.error),
    )


def usage_of(
    usage: object, *, prompt: str = "prompt_tokens", completion: str = "completion_tokens"
) -> Usage | None:
    """Return an answer's token counts by their names; None where there are none, 0 for an absurd one."""
    if not (usage and isinstance(usage, dict)):
        return None
    counts = (usage.get(prompt), usage.get(completion))
    return Usage(*(count if isinstance(count, int) and 0 < count < _MAX_TOKENS else 0 for count in counts))


COMPLETIONS = Dialect(read_answer, read_chunk, error_event, sse.DONE.decode())
