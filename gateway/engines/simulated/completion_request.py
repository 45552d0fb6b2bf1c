"""A completion request as the simulated engine reads it: whose shape it has, how long it may become."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.errors import BadRequest, UnknownModel
from gateway.policy.sort.evidence import sort
from gateway.wire import openai, responses

if TYPE_CHECKING:
    from gateway.policy.sort.evidence import SortRules

MAX_IMAGES = 32
_NULL = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """What one request asks for.

    Attributes:
        chat: it has messages, not a prompt.
        route: whose shape its answer has.
        stream: answer as server-sent events.
        include_usage: end a stream with its token usage.
        continuous_usage: tell the usage so far in each event, too.
        max_tokens: the answer's limit; None for none.
        ignore_eos: write to that limit, whatever length the answer would have.
        stream_interval: tokens that an event waits for, but for the first and the last; a whole answer
            waits for its end.
    """

    chat: bool
    route: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    ignore_eos: bool
    stream_interval: int = 1


class _StreamOptions(msgspec.Struct):
    continuous_usage_stats: bool | None = None


class _Options(msgspec.Struct):
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    ignore_eos: bool | None = None
    stream_options: _StreamOptions | None = None
    stream_interval: int | None = None
    min_p: float | None = None
    logit_bias: msgspec.Raw = _NULL


_OPTIONS = msgspec.json.Decoder(_Options)


def parse(body: bytes, *, chat: bool, model: str, rules: SortRules, speculative: bool) -> SimulatedRequest:
    """Read a request's body for the engine that serves `model`.

    Args:
        body: the body as sent.
        chat: it is a chat completion.
        model: the name served.
        rules: the fit's routes; what only its image could sort goes to the default.
        speculative: the engine drafts, and so refuses what vLLM refuses then.

    Raises:
        BadRequest: invalid JSON, a wrong field, more than one choice, an option that speculation rules out.
        UnknownModel: another model is asked for.
    """
    request = openai.parse_request(body, chat=chat, max_images=MAX_IMAGES, from_gateway=True)
    return _simulated(request, chat=chat, model=model, rules=rules, speculative=speculative)


def parse_response(body: bytes, *, model: str, rules: SortRules, speculative: bool) -> SimulatedRequest:
    """Read the body of a request in the Responses API; see `parse`."""
    request = responses.parse_request(body, max_images=MAX_IMAGES, from_gateway=True)
    return _simulated(request, chat=True, model=model, rules=rules, speculative=speculative)


def _simulated(
    request: openai.CompletionRequest, *, chat: bool, model: str, rules: SortRules, speculative: bool
) -> SimulatedRequest:
    if request.model not in (None, model):
        raise UnknownModel(
            f"The model `{request.model}` does not exist. Valid aliases: {model}.", param="model"
        )
    options = _options(request.body)
    if options.n not in (None, 1):
        raise BadRequest("n must be 1: a simulated engine gives one answer", param="n")
    for param in ("max_tokens", "max_completion_tokens", "max_output_tokens", "stream_interval"):
        value = getattr(options, param)
        if value is not None and value < 1:
            raise BadRequest(f"{param} must be at least 1, got {value}. (parameter={param})", param=param)
    if speculative and (options.min_p or bytes(options.logit_bias) not in (b"null", b"{}")):
        raise BadRequest("The min_p and logit_bias sampling parameters are not supported with speculation.")
    # A gateway's routes need not be the fit's.
    hint = request.facts.metadata if request.facts.metadata in rules.routes else None
    decision = sort(replace(request.facts, metadata=hint), rules)
    stream_options = options.stream_options or _StreamOptions()
    return SimulatedRequest(
        chat=chat,
        route=rules.default if decision is None else decision.route,
        stream=request.stream,
        include_usage=request.include_usage,
        continuous_usage=request.include_usage and bool(stream_options.continuous_usage_stats),
        max_tokens=options.max_output_tokens or options.max_completion_tokens or options.max_tokens,
        ignore_eos=bool(options.ignore_eos),
        stream_interval=options.stream_interval or 1 if request.stream else sys.maxsize,
    )


def _options(body: bytes) -> Any:
    try:
        return _OPTIONS.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from error
