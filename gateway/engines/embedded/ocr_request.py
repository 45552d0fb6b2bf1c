"""A chat request as this engine reads it: what to read, and in which form to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.engines.embedded.pictures import check_header
from gateway.engines.embedded.schemas import wanted_schema
from gateway.engines.embedded.tasks import Task, task_of
from gateway.engines.embedded.tokens import count_tokens, image_tokens
from gateway.errors import BadImage, BadRequest, UnknownModel
from gateway.wire import openai, responses
from gateway.wire.image.headers import parse_data_url

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_IMAGES = 32


@dataclass(frozen=True, slots=True)
class OcrRequest:
    """What one request wants read.

    Attributes:
        task: the form of the answer.
        prompt: the user's words.
        schema: JSON schema of a key-value answer; None where the pairs found are the answer.
        images: the encoded images, in order.
        stream: answer as server-sent events.
        include_usage: end a stream with its token usage.
        max_tokens: the answer's limit; None for none.
        prompt_tokens: tokens of words and images together.
        tool: the function to call with the answer, if one is forced.
        finish_reason: of an answer that is not cut: `tool_calls` where a tool is required, else `stop`.
    """

    task: Task
    prompt: str
    schema: Mapping[str, Any] | None
    images: tuple[bytes, ...]
    stream: bool
    include_usage: bool
    max_tokens: int | None
    prompt_tokens: int
    tool: str | None
    finish_reason: str


class _Function(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Function


class _Limits(msgspec.Struct):
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | _Tool | None = None


class _ResponseLimits(msgspec.Struct):
    max_output_tokens: int | None = None
    tools: list[_Function] | None = None
    tool_choice: str | _Function | None = None


_LIMITS = msgspec.json.Decoder(_Limits)
_RESPONSE_LIMITS = msgspec.json.Decoder(_ResponseLimits)


def parse(body: bytes, model: str) -> OcrRequest:
    """Read a chat request's body for the engine that serves `model`.

    Raises:
        BadRequest: invalid JSON, a wrong field, more than one choice asked for, an image that cannot be read.
        UnknownModel: another model is asked for.
    """
    request = openai.parse_request(body, chat=True, max_images=MAX_IMAGES, from_gateway=True)
    return _read(request, model, _limits(_LIMITS, body))


def parse_response(body: bytes, model: str) -> OcrRequest:
    """Read the body of a request in the Responses API; see `parse`."""
    request = responses.parse_request(body, max_images=MAX_IMAGES, from_gateway=True)
    fields: _ResponseLimits = _limits(_RESPONSE_LIMITS, body)
    choice = fields.tool_choice
    tools = [_Tool(tool) for tool in fields.tools or ()]
    limits = _Limits(
        max_output_tokens=fields.max_output_tokens,
        tools=tools,
        tool_choice=_Tool(choice) if isinstance(choice, _Function) else choice,
    )
    return _read(request, model, limits)


def _read(request: openai.CompletionRequest, model: str, limits: _Limits) -> OcrRequest:
    if request.model not in (None, model):
        raise UnknownModel(f"The model `{request.model}` does not exist. It is `{model}`.", param="model")
    _check(limits)
    images, sizes = [], []
    for part in request.images:
        try:
            data = parse_data_url(part.url).data
            sizes.append(check_header(data))
        except BadImage as error:
            raise error.named(part.param) from error
        images.append(data)
    words = count_tokens(request.facts.system) + count_tokens(request.facts.prompt)
    tool = _forced_tool(limits)
    return OcrRequest(
        task=task_of(request.facts) if tool is None else "key-value",
        prompt=request.facts.prompt,
        schema=wanted_schema(request.facts),
        images=tuple(images),
        stream=request.stream,
        include_usage=request.include_usage,
        max_tokens=limits.max_output_tokens or limits.max_completion_tokens or limits.max_tokens,
        prompt_tokens=words + sum(image_tokens(*size) for size in sizes),
        tool=tool,
        finish_reason="tool_calls" if limits.tool_choice == "required" else "stop",
    )


def _limits(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from error


def _check(limits: _Limits) -> None:
    if limits.n is not None and limits.n != 1:
        raise BadRequest("n must be 1: reading an image twice gives the same text", param="n")
    for param in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        value = getattr(limits, param)
        if value is not None and value < 1:
            raise BadRequest(f"{param} must be at least 1, got {value}", param=param)


def _forced_tool(limits: _Limits) -> str | None:
    names = [tool.function.name for tool in limits.tools or ()]
    if isinstance(limits.tool_choice, _Tool):
        if limits.tool_choice.function.name not in names:
            raise BadRequest("tool_choice names a function that tools lacks", param="tool_choice")
        return limits.tool_choice.function.name
    if limits.tool_choice == "required":
        if not names:
            raise BadRequest("tool_choice is required but tools is empty", param="tools")
        return names[0]
    return None
