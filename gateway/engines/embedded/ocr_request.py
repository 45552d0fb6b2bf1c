"""A request as this engine reads it: what to read, and in which form to answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.engines.embedded.constraints import constraint_of, tools_to_call
from gateway.engines.embedded.pictures import check_header
from gateway.engines.embedded.request_fields import check_fields
from gateway.engines.embedded.schemas import wanted_schema
from gateway.engines.embedded.stop_strings import stop_strings
from gateway.engines.embedded.tasks import Task, task_of
from gateway.engines.embedded.tokens import count_tokens, image_tokens
from gateway.errors import BadImage, BadRequest, UnknownModel
from gateway.wire import openai, responses
from gateway.wire.image.headers import parse_data_url
from gateway.wire.partial_json import MEMBERS, NULL, member_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.engines.embedded.constraints import Constraint, Tool

MAX_IMAGES = 32


@dataclass(frozen=True, slots=True)
class OcrRequest:
    """What one request wants read.

    Attributes:
        task: the form of the answer.
        prompt: the user's words.
        schema: fields of a key-value answer that nothing binds; None where the pairs found are the answer.
        images: the encoded images, in order.
        stream: answer as server-sent events.
        include_usage: end a stream with its token usage.
        continuous_usage: tell the usage so far in each event, too.
        max_tokens: the answer's limit; None for none.
        prompt_tokens: tokens of words and images together.
        finish_reason: of an answer that is not cut: `tool_calls` where a tool is required, else `stop`.
        constraint: what the answer must be; None where nothing binds it.
        tools: the functions of which one is called with the answer; empty where it is text.
        stops: the answer ends where one of these would come.
        keep_stop: that stop string belongs to the answer.
    """

    task: Task
    prompt: str
    schema: Mapping[str, Any] | None
    images: tuple[bytes, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    prompt_tokens: int
    finish_reason: str
    constraint: Constraint | None
    tools: tuple[Tool, ...]
    stops: tuple[str, ...]
    keep_stop: bool

    @property
    def is_bound(self) -> bool:
        """Whether the answer must have a form that what is read may turn out not to have."""
        free = self.constraint is None or self.constraint.is_object
        return bool(self.tools) or not free


class _StreamOptions(msgspec.Struct):
    continuous_usage_stats: bool | None = None


class _Options(msgspec.Struct):
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    stop: msgspec.Raw = NULL
    include_stop_str_in_output: bool | None = None
    stream_options: _StreamOptions | None = None


_OPTIONS = msgspec.json.Decoder(_Options)


def parse(body: bytes, model: str, route: str | None = None) -> OcrRequest:
    """Read a chat request's body for the engine that serves `model`.

    Args:
        body: as sent.
        model: the model's name.
        route: whose form the answer has where the request has no words of its own.

    Raises:
        BadRequest: invalid JSON, a wrong field, one that cannot be honoured, an image that cannot be read.
        UnknownModel: another model is asked for.
    """
    request = openai.parse_request(body, chat=True, max_images=MAX_IMAGES, from_gateway=True)
    return _read(request, model, route)


def parse_response(body: bytes, model: str, route: str | None = None) -> OcrRequest:
    """Read the body of a request in the Responses API; see `parse`."""
    return _read(responses.parse_request(body, max_images=MAX_IMAGES, from_gateway=True), model, route)


def _read(request: openai.CompletionRequest, model: str, route: str | None) -> OcrRequest:
    if request.model not in (None, model):
        raise UnknownModel(f"The model `{request.model}` does not exist. It is `{model}`.", param="model")
    options = _options(request.body)
    members = MEMBERS.decode(request.body)
    check_fields(members)
    constraint, tools = constraint_of(members), tools_to_call(members)
    images, sizes = [], []
    for part in request.images:
        try:
            data = parse_data_url(part.url).data
            sizes.append(check_header(data))
        except BadImage as error:
            raise error.named(part.param) from error
        images.append(data)
    # A schema among the facts is that of the constraint or of a tool, whose turn it need not be.
    facts = replace(request.facts, schema=None, wants_json=False)
    words = count_tokens(facts.system) + count_tokens(facts.prompt)
    is_json = constraint is not None and (constraint.is_object or constraint.schema is not None)
    required = bytes(members.get("tool_choice", NULL)) == b'"required"'
    return OcrRequest(
        task="key-value" if tools or is_json else task_of(facts, route),
        prompt=facts.prompt,
        schema=wanted_schema(facts),
        images=tuple(images),
        stream=request.stream,
        include_usage=request.include_usage,
        continuous_usage=bool(options.stream_options and options.stream_options.continuous_usage_stats),
        max_tokens=options.max_output_tokens or options.max_completion_tokens or options.max_tokens,
        prompt_tokens=words + sum(image_tokens(*size) for size in sizes),
        finish_reason="tool_calls" if tools and required else "stop",
        constraint=constraint,
        tools=tools,
        stops=stop_strings(member_of(options.stop)),
        keep_stop=bool(options.include_stop_str_in_output),
    )


def _options(body: bytes) -> _Options:
    try:
        options = _OPTIONS.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from error
    if options.n is not None and options.n != 1:
        raise BadRequest("n must be 1: reading an image twice gives the same text", param="n")
    for param in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        value = getattr(options, param)
        if value is not None and value < 1:
            raise BadRequest(f"{param} must be at least 1, got {value}", param=param)
    return options
