"""Frozen values that every room above speaks in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


# Bytes of a request or an answer, wherever they lie: they are passed on without being copied.
Buffer = bytes | bytearray | memoryview


class Reason(StrEnum):
    """The kind of evidence that decided a request's route, strongest first."""

    HEADER = "header"
    MODEL = "model"
    METADATA = "metadata"
    PROMPT = "prompt"
    STRUCTURE = "structure"
    IMAGE = "image"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SortFacts:
    """What a request says of the work it asks for, read without decoding an image.

    Attributes:
        header: the `x-ocr-route` header.
        alias: the part behind the colon of `model: NAME:route`.
        metadata: the request's `metadata.ocr_route`.
        prompt: the user's text parts, joined, as sent.
        system: the system text, joined, as sent.
        schema: the JSON schema the answer must follow (response_format, structured outputs, forced tool).
        wants_json: a JSON object is demanded, without a schema.
        template: `chat_template_kwargs.template` (NuExtract's fields).
        template_mode: `chat_template_kwargs.mode` (NuExtract's `markdown` and `content`).
        has_image: there is at least one image to look at.
    """

    header: str | None = None
    alias: str | None = None
    metadata: str | None = None
    prompt: str = ""
    system: str = ""
    schema: Mapping[str, Any] | None = None
    wants_json: bool = False
    template: object | None = None
    template_mode: str | None = None
    has_image: bool = False


@dataclass(frozen=True, slots=True)
class SortDecision:
    """A route and why; `confidence` is 1 unless the image decided."""

    route: str
    reason: Reason
    confidence: float = 1.0


@dataclass(frozen=True, slots=True)
class LayoutGuess:
    """What an image alone says of its route; `confidence` is the classifier's probability, 0 to 1."""

    route: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Engine:
    """One inference server; `url` is its base URL without a trailing slash, `depth` its pool's.

    Its key is not shown where the value is printed.
    """

    name: str
    url: str
    pool: str
    depth: int
    api_key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Speculation:
    """What was drafted, and what came of it: sums over one answer, one engine or one route.

    Attributes:
        drafts: as vLLM counts them: one for each request and step that had draft tokens.
        accepted: draft tokens that were accepted.
        draft_tokens: tokens proposed; None where that is not known.
        accepted_per_position: accepted tokens by draft position; empty where that is not known.
    """

    drafts: float
    accepted: float
    draft_tokens: float | None = None
    accepted_per_position: tuple[float, ...] = ()

    @property
    def length(self) -> float | None:
        """The acceptance length, in tokens per step; None without a draft."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def adds_up(self) -> bool:
        """Whether no more was accepted than drafted, and no more drafted than the positions have room for."""
        most = self.drafts * len(self.accepted_per_position)
        return self.draft_tokens is None or self.accepted <= self.draft_tokens <= most


class SpeculationFault(StrEnum):
    """Why what an engine tells of one answer's speculation is no figure.

    Attributes:
        FORMAT: it is not the object that is known: other versions have other shapes.
        HISTOGRAM_SUMS: its drafts or accepted tokens are not the sums of its histogram.
        ACCEPTED_OVER_DRAFTED: more tokens were accepted than drafted.
        DRAFTED_OVER_POSITIONS: more tokens were drafted than the drafts have positions for.
        DRAFTS_OVER_TOKENS: there were more drafts than the answer has tokens.
        POOL_DEPTH: it has more or fewer positions than its pool's depth.
    """

    FORMAT = "format"
    HISTOGRAM_SUMS = "histogram_sums"
    ACCEPTED_OVER_DRAFTED = "accepted_over_drafted"
    DRAFTED_OVER_POSITIONS = "drafted_over_positions"
    DRAFTS_OVER_TOKENS = "drafts_over_tokens"
    POOL_DEPTH = "pool_depth"


# What an answer tells of its speculation: figures, figures that are none, or nothing.
ToldSpeculation = Speculation | SpeculationFault | None


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine's metrics said.

    Attributes:
        at: when, in seconds on the gateway's clock.
        load: requests running and waiting there.
        own: how many of them were this gateway's at that moment.
        awake: it is not in sleep mode.
        generation_tokens: tokens written since it started.
        finished: requests finished since then, anybody's.
        chunks: of its streams, that had come when it was asked.
        speculation: what it has drafted since it started, by data-parallel rank; empty where it does not
            speculate.
        mismatch: how it differs from its pool's configuration; empty where it does not, or it is not known.
        simulated: it says of itself that it is simulated.
    """

    at: float
    load: int
    own: int
    awake: bool = True
    generation_tokens: float = 0.0
    finished: float = 0.0
    chunks: int = 0
    speculation: Mapping[str, Speculation] = field(default_factory=dict)
    mismatch: str = ""
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer, as the engine told them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Decision(NamedTuple):
    """What became of a request that was sorted, for /status: nothing of its content, nor whose it was.

    Attributes:
        at: when it ended, in seconds since 1970.
        request_id: the client's own or a new one.
        route: where it was sorted.
        reason: the evidence for that.
        pool: where it had a place last, as are the next two; None where it never had one.
        engine: which.
        depth: the depth that engine ran at.
        code: its status; 499 where the client left.
        seconds: from its arrival to its end.
        waited_s: of these, in the queue.
        acceptance_length: of its answer, where that is known and believed.
        completion_tokens: of its answer, where the engine told.
        why: what the choice went by, and what came between, or why there was none.
    """

    at: float
    request_id: str
    route: str
    reason: str
    pool: str | None
    engine: str | None
    depth: int | None
    code: int
    seconds: float
    waited_s: float
    acceptance_length: float | None
    completion_tokens: int | None
    why: str
