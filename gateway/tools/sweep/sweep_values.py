"""What a sweep measures and finds: frozen values, all of them written as JSON.

Loads are requests on ONE engine, rates are output tokens per second of ONE engine, `_s` are seconds. A
simulated engine runs on a clock of its own, which may be faster than ours: its seconds are meant then.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.model import Speculation  # noqa: TC001 - msgspec resolves it at run time


class SweepCell(msgspec.Struct, frozen=True, order=True):
    """One thing to measure: one route on one engine of a pool.

    Attributes:
        route: whose requests.
        pool: on whose engines; any one of them.
        load: requests at a time (closed loop); in an open loop the most that may be under way.
        repeat: 0 for the first window of this kind, 1 for the second, ...
        per_s: requests sent a second, at random moments (open loop); 0 in a closed loop.
    """

    route: str
    pool: str
    load: int
    repeat: int = 0
    per_s: float = 0.0


class Spread(msgspec.Struct, frozen=True):
    """How a time is distributed over the requests answered in a window, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a cell.

    Attributes:
        cell: which.
        engine: its name.
        started: when the window began, ISO 8601 in UTC.
        seconds: its length.
        warm_s: what went before until throughput was steady.
        steady: it was, when the window began.
        requests: answered in the window.
        errors: failed requests by kind, warm-up included.
        rate: tokens per second by the engine's counters.
        stderr: its standard error, from the window's stretches; 0 where there were too few.
        answered_rate: tokens per second as the clients counted them.
        requests_per_s: answered requests a second.
        prompt_rate: prompt tokens a second, by the engine's counters.
        first_token_s: from sending to the first token; None where answers were not streamed.
        token_s: time per output token after the first; None as above.
        request_s: from sending to the end.
        speculation: by the engine's counters, in the window; None where it does not speculate.
        told: as the answers told it, those answered in the window; None where they told nothing.
        agree: whether answers and counters agree on the acceptance length; None where one is missing.
        tokens_per_step: tokens that one verification delivers to a request; None where the engine's latency
            histograms are missing.
        step_s: mean time between a request's steps; None as above.
        running: requests that the engine worked on, mean of samples.
        waiting: requests that waited in the engine, mean of samples.
        highest: most of both at once.
        late_s: how far the clients' own event loop was behind, mean of samples.
        preemptions: requests that the engine put back for want of memory.
        kv_usage: highest share of the KV cache in use; None where the engine does not tell.
        cached: share of prompt tokens that came from the prefix cache; None where the engine does not tell.
        invalid: why it may not be used for a recommendation; empty where it may.
        flags: what else a reader should know.
        source: `ours`, or the file of another benchmark that it was read from.
    """

    cell: SweepCell
    engine: str
    started: str
    seconds: float
    warm_s: float = 0.0
    steady: bool = True
    requests: int = 0
    errors: dict[str, int] = {}
    rate: float = 0.0
    stderr: float = 0.0
    answered_rate: float = 0.0
    requests_per_s: float = 0.0
    prompt_rate: float = 0.0
    first_token_s: Spread | None = None
    token_s: Spread | None = None
    request_s: Spread | None = None
    speculation: Speculation | None = None
    told: Speculation | None = None
    agree: bool | None = None
    tokens_per_step: float | None = None
    step_s: float | None = None
    running: float = 0.0
    waiting: float = 0.0
    highest: int = 0
    late_s: float = 0.0
    preemptions: int = 0
    kv_usage: float | None = None
    cached: float | None = None
    invalid: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    source: str = "ours"

    @property
    def valid(self) -> bool:
        """Whether a recommendation may rest on it."""
        return not self.invalid


class SweptPool(msgspec.Struct, frozen=True):
    """A pool under test: how its engines were started, and what they are.

    Attributes:
        depth: num_speculative_tokens; 0 = ordinary decoding.
        speculative_config: vLLM's own object.
        ranges: the engines' own schedule by batch size, `(from, to, depth)`; empty where they have none.
        max_load: the most requests one engine may have.
        engines: how many there are.
        version: what they said of themselves.
    """

    depth: int
    speculative_config: dict[str, Any] = {}
    ranges: tuple[tuple[int, int, int], ...] = ()
    max_load: int = 256
    engines: int = 1
    version: str = ""


class RequestShape(msgspec.Struct, frozen=True):
    """What the requests of a route were.

    Attributes:
        prompt: their text.
        images: how many different ones.
        rendered: the images were drawn by this tool, not the operator's own.
        max_tokens: the longest answer allowed.
        streamed: answers were streamed.
        images_digest: tells other images of the same number apart; empty where it is not known.
    """

    prompt: str
    images: int
    rendered: bool
    max_tokens: int
    streamed: bool = True
    images_digest: str = ""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep was made of and on.

    Attributes:
        model: served name.
        gpu: as the operator named it; empty where they did not.
        simulated: the simulated engines' fit; empty where the engines are real.
        pools: by name.
        routes: by name.
        loads: concurrencies of the grid, ascending.
        window_s: length of a window.
        started: when, ISO 8601 in UTC.
        tool: this program's version.
        client: the machine that sent the load, in words.
    """

    model: str
    gpu: str = ""
    simulated: str = ""
    pools: dict[str, SweptPool]
    routes: dict[str, RequestShape]
    loads: tuple[int, ...]
    window_s: float
    started: str
    tool: str
    client: str = ""


class Results(msgspec.Struct, frozen=True):
    """A sweep so far."""

    setting: Setting
    windows: tuple[Window, ...]


class MeasuredPoint(msgspec.Struct, frozen=True):
    """A curve's raw point: mean rate of the valid windows at a load, its standard error, how many."""

    load: int
    rate: float
    stderr: float
    windows: int


class DepthChange(msgspec.Struct, frozen=True):
    """A crossover: from a load on, another pool wins.

    Attributes:
        load: the first at which it does.
        low, high: 95% interval of that, bootstrapped.
        before, after: the pools that win below it and from it on.
        certain: noise was measured, and each wins on its side beyond it.
    """

    load: int
    low: int
    high: int
    before: str
    after: str
    certain: bool


class DepthRange(msgspec.Struct, frozen=True):
    """An entry of a schedule, with what it rests on.

    Attributes:
        first, last: loads, inclusive.
        pool: the fastest there.
        depth: at which its engines run there.
        runner_up: the fastest pool of another depth; empty where there is none.
        margin: by how much it is faster than that, relative, mean over the range.
        low, high: 95% interval of the margin.
    """

    first: int
    last: int
    pool: str
    depth: int
    runner_up: str
    margin: float
    low: float
    high: float


class DeeperDraft(msgspec.Struct, frozen=True):
    """Whether drafting deeper still pays, between two pools at one load.

    Attributes:
        load: requests on the engine.
        shallow, deep: the pools' depths.
        tokens: tokens per step, deep over shallow.
        time: time of a step, deep over shallow.
        accepted: share of drafts of the deep one in which the tokens beyond the shallow one's were accepted,
            by position.
    """

    load: int
    shallow: int
    deep: int
    tokens: float
    time: float
    accepted: tuple[float, ...]

    @property
    def pays(self) -> bool:
        """Whether it wins more tokens than it costs time."""
        return self.tokens > self.time


class RouteFindings(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep says of one route.

    Attributes:
        points: by pool, the raw curve.
        noise: standard deviation of one window's rate, relative; None where nothing was repeated.
        schedule: ranges over all loads; adjacent ones differ in depth.
        changes: the crossovers between them, in order; empty where one depth wins everywhere.
        deeper: neighbouring depths at each load.
        own_schedule: what `num_speculative_tokens_per_batch_size` an engine for this route alone would use.
        words: the recommendation, in sentences.
    """

    points: dict[str, tuple[MeasuredPoint, ...]]
    noise: float | None
    schedule: tuple[DepthRange, ...]
    changes: tuple[DepthChange, ...]
    deeper: tuple[DeeperDraft, ...]
    own_schedule: tuple[tuple[int, int, int], ...]
    words: tuple[str, ...]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep says.

    Attributes:
        routes: by name; those that were measured.
        own_schedule: what `num_speculative_tokens_per_batch_size` an engine for all routes would use.
        words: what holds for all of it, in sentences.
    """

    routes: dict[str, RouteFindings]
    own_schedule: tuple[tuple[int, int, int], ...]
    words: tuple[str, ...]
