"""Frozen values that every room above speaks in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
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

    `authorities` are the certificates, as PEM text, that its own is checked against; empty for those that the
    system trusts. Its key is not shown where the value is printed.
    """

    name: str
    url: str
    pool: str
    depth: int
    api_key: str = field(default="", repr=False)
    authorities: str = field(default="", repr=False)


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


class PageCounts(NamedTuple):
    """A document's pages: how many there were to read, how many failed, and the requests sent for them."""

    total: int
    failed: int
    requests: int


class RequestRecord(NamedTuple):
    """What became of one request: metrics, the access log, spans and /status are all written from it.

    Nothing of its content is in it.

    Attributes:
        at: when it ended, in seconds since 1970.
        request_id: the client's own or a new one.
        path: the endpoint.
        code: the status it ended with; 499 where the client left.
        seconds: from its arrival to its end.
        error: the code of the error it ended with; empty where there was none.
        key: the name of the client's API key; empty where there are no keys.
        route: where it was sorted; empty where it was not.
        reason: the evidence for that.
        pool: of the engine of its last attempt, as are the next two; None where there was no attempt.
        engine: its name.
        depth: the depth it ran at.
        waited_s: of `seconds`, in the queue, for all attempts together.
        first_token_s: from its arrival to the first output of a stream, in its last attempt.
        usage: token counts, where the answer had them.
        speculation: what was drafted for its answer, where that is known and believed.
        speculation_source: where that is known from.
        acceptance_length: by that, in tokens per step.
        image_bytes: of its images, decoded.
        depths: of the engine of each attempt, under the load that the attempt made.
        retried: how each attempt but the last failed.
        overhead: seconds that stages of the path took in the gateway, by stage.
        why: what the choice of an engine went by, what came between, and how it failed.
        trace_id: of its trace; None where it is not traced.
        pages: where it is a document.
    """

    at: float
    request_id: str
    path: str
    code: int
    seconds: float
    error: str = ""
    key: str = ""
    route: str = ""
    reason: str = ""
    pool: str | None = None
    engine: str | None = None
    depth: int | None = None
    waited_s: float = 0.0
    first_token_s: float | None = None
    usage: Usage | None = None
    speculation: Speculation | None = None
    speculation_source: str | None = None
    acceptance_length: float | None = None
    image_bytes: int = 0
    depths: tuple[int, ...] = ()
    retried: tuple[str, ...] = ()
    overhead: Mapping[str, float] = MappingProxyType({})
    why: str = ""
    trace_id: str | None = None
    pages: PageCounts | None = None

    @property
    def attempts(self) -> int:
        """How many engines it was sent to, one after the other."""
        return len(self.retried) + (self.engine is not None)
