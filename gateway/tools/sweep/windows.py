"""From samples of an engine's counters and what its clients saw to a window's figures.

A cell's samples are in order: the first was taken before any of its requests was sent, the last when none was
under way any more. Seconds are the engine's own: a simulated engine's clock may be faster than ours.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from gateway.policy.account.acceptance import gain, total
from gateway.policy.choose.gain import Z95
from gateway.tools.sweep.sweep_values import Spread, Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gateway.model import Speculation
    from gateway.tools.sweep.engine_clients import EndedRequest
    from gateway.tools.sweep.sweep_values import SweepCell
    from gateway.wire.vllm.engine import EngineWork

# A warm-up is over: intervals between samples in a third of it, at least; change of the rate, at most.
_THIRD = 2
_TREND = 0.05
# Batch means: stretches of a window; samples in a stretch; correlation of neighbouring stretches, at most.
_STRETCHES = (6, 20)
_SAMPLES_PER_STRETCH = 2
_MOST_ALIKE = 0.9
# What makes a flag; where there are two figures, the second makes a window invalid. Shares of the load that a
# simulated engine had, and of a request's time that our event loop was behind; seconds without metrics;
# requests; shares of an open loop's rate, of cached prompt tokens, of answers cut at their longest.
_HELD = 0.95
_BEHIND = (0.05, 0.2)
_SILENT_S = (3.0, 12.0)
_FEW_REQUESTS = 10
_OFF = 0.05
_CACHED = 0.01
_CUT = 0.05
# Answers and counters agree: all of a cell's, and the acceptance lengths of a window.
_EXACT = 0.001
_ALIKE = 0.02


@dataclass(frozen=True, slots=True)
class EngineSample:
    """What an engine's metrics said, and what we had sent by then.

    Attributes:
        at: seconds on our clock, when the metrics had come.
        work: what they said.
        in_flight: our requests under way, when the metrics had come.
        sent: our requests so far, in this cell.
        late: seconds that our event loop was behind, when they were asked for.
        skipped: requests of an open loop that came due so far and were not sent.
    """

    at: float
    work: EngineWork
    in_flight: int
    sent: int
    late: float = 0.0
    skipped: int = 0

    @property
    def load(self) -> int:
        """Requests on the engine, anybody's."""
        return self.work.reading.running + self.work.reading.waiting


def elapsed(first: EngineSample, second: EngineSample) -> float:
    """Return the engine's seconds between two samples."""
    before, after = first.work.simulated, second.work.simulated
    return after.clock_s - before.clock_s if before and after else second.at - first.at


def steady(samples: Sequence[EngineSample], answered: int) -> bool:
    """Whether the warm-up is over.

    It is when there were as many answers as requests are under way, so that the clients, who began
    together, have come apart; and when throughput has no trend any more: its last third differs from the
    third before by no more than 5%, or two standard errors of that difference. The scatter is taken from
    neighbours (von Neumann), so that a trend does not excuse itself.

    Args:
        samples: since the load began.
        answered: requests that ended so far.
    """
    rates = _rates(samples)
    third = len(rates) // 3
    if third < _THIRD or answered < max(1, samples[-1].in_flight):
        return False
    earlier, later = rates[-2 * third : -third], rates[-third:]
    steps = np.concatenate([np.diff(earlier), np.diff(later)])
    scatter = float(np.sqrt(np.mean(steps**2) / third))
    difference = abs(float(later.mean() - earlier.mean()))
    return difference <= max(_TREND * float(later.mean()), 2 * scatter)


def others_requests(samples: Sequence[EngineSample], load: int) -> str:
    """Say what requests of somebody else an engine had; empty where none are seen.

    Pages and our own counts are of slightly different moments, so this is certain, not sharp: since the
    sample before, no more of ours can have been under way than then and those sent since, nor more than
    `load`; and no more can have finished than we ever sent. A cell's last sample, when all of ours have
    ended, leaves no slack.

    Args:
        samples: of a cell, from its first on.
        load: the most of ours at a time.
    """
    first = samples[0]
    for before, now in pairwise([first, *samples]):
        ours = min(load, before.in_flight + now.sent - before.sent)
        if now.load > ours:
            return f"somebody else's requests: the engine had {now.load}, at most {ours} were ours"
        finished = now.work.reading.finished - first.work.reading.finished
        if finished > now.sent - first.sent:
            return f"somebody else's requests: {finished:.0f} finished, {now.sent - first.sent} were ours"
    return ""


def window(
    cell: SweepCell,
    engine: str,
    samples: Sequence[EngineSample],
    begin: int,
    end: int,
    records: Sequence[EndedRequest],
    *,
    started: str,
    steady: bool,
) -> Window:
    """Return a cell's figures.

    Counters count between two samples, requests where they ended between them. What clients saw in real
    seconds is stretched by how much faster the engine's clock ran in the window; the engine's own histograms
    by its nominal time scale, since a simulated engine counts a step's time as if it had never been late.

    Args:
        cell: what was measured.
        engine: on which.
        samples: all of the cell's.
        begin, end: places of those samples that bracket the window.
        records: all of the cell's.
        started: when the window began, ISO 8601 in UTC.
        steady: whether it was.
    """
    first, last = samples[begin], samples[end]
    inside = samples[begin : end + 1]
    seconds = elapsed(first, last)
    answered = [record for record in records if not record.error]
    ended = [record for record in answered if first.at < record.ended <= last.at]
    errors = Counter(record.error for record in records if record.error)
    faster = _per(seconds, last.at - first.at)
    tokens_per_step, step_s = _steps(first.work, last.work)
    measured = Window(
        cell=cell,
        engine=engine,
        started=started,
        seconds=seconds,
        warm_s=elapsed(samples[0], first),
        steady=steady,
        requests=len(ended),
        errors=dict(errors),
        rate=_per(last.work.reading.generation_tokens - first.work.reading.generation_tokens, seconds),
        stderr=_stderr(inside),
        answered_rate=_per(sum(record.tokens for record in ended), seconds),
        requests_per_s=_per(len(ended), seconds),
        prompt_rate=_per(last.work.reading.prompt_tokens - first.work.reading.prompt_tokens, seconds),
        first_token_s=_spread((record.first - record.sent for record in ended if record.first), faster),
        token_s=_spread(
            (
                (record.ended - record.first) / (record.tokens - 1)
                for record in ended
                if record.first and record.tokens > 1
            ),
            faster,
        ),
        request_s=_spread((record.ended - record.sent for record in ended), faster),
        speculation=_speculation(first, last),
        told=_told(ended),
        agree=_agree(samples, first, last, records, ended),
        tokens_per_step=tokens_per_step,
        step_s=step_s,
        running=float(np.mean([sample.work.reading.running for sample in inside])),
        waiting=float(np.mean([sample.work.reading.waiting for sample in inside])),
        highest=max(sample.load for sample in inside),
        late_s=faster * float(np.mean([sample.late for sample in inside])),
        preemptions=round(_more(first.work.preemptions, last.work.preemptions) or 0),
        kv_usage=max(
            (usage for sample in inside if (usage := sample.work.kv_usage) is not None), default=None
        ),
        cached=_cached(first.work, last.work),
    )
    return msgspec.structs.replace(
        measured,
        invalid=tuple(_invalid(measured, samples, inside)),
        flags=tuple(_flags(measured, inside, ended)),
    )


def _invalid(
    measured: Window, samples: Sequence[EngineSample], inside: Sequence[EngineSample]
) -> Iterator[str]:
    if measured.errors:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in sorted(measured.errors.items()))
        yield f"requests failed: {kinds}"
    if others := others_requests(samples, measured.cell.load):
        yield others
    if any(_fell(before.work, after.work) for before, after in pairwise(samples)):
        yield "the engine's counters went back: it was restarted"
    elif measured.rate <= 0:
        yield "the engine wrote nothing"
    # Sockets are no match for a clock that is faster than ours: there it is only told.
    elif not samples[0].work.simulated and _behind(measured) > _BEHIND[1]:
        yield f"this machine was too busy to send the load: {measured.late_s:.2f} s behind"
    if (silent := _silent(inside)) > _SILENT_S[1]:
        yield f"the engine told nothing for {silent:.0f} s: it may have stood still"


def _flags(measured: Window, samples: Sequence[EngineSample], ended: Sequence[EndedRequest]) -> Iterator[str]:
    load = measured.cell.load
    if not measured.steady:
        yield f"throughput was not steady yet after {measured.warm_s:.0f} s"
    # A real engine prepares images before it counts a request; a simulated one has nothing to prepare.
    held = (measured.running + measured.waiting) / load
    if samples[0].work.simulated and not measured.cell.per_s and held < _HELD:
        yield f"this machine was busy: the simulated engine had {held * load:.1f} of {load} requests"
    if _behind(measured) > _BEHIND[0]:
        yield f"this machine was busy: {measured.late_s:.2f} s behind when it sent"
    if _SILENT_S[0] < (silent := _silent(samples)) <= _SILENT_S[1]:
        yield f"the engine told nothing for {silent:.0f} s: it may have stood still"
    if measured.cell.per_s:
        yield from _sent(measured, samples)
    if measured.requests < max(_FEW_REQUESTS, load):
        yield f"few requests: {measured.requests} were answered"
    cut = _per(sum(record.truncated for record in ended), len(ended))
    if cut > _CUT:
        yield f"{cut:.0%} of the answers were cut off at their longest"
    if not measured.stderr:
        yield "too few samples for a standard error"
    if measured.preemptions:
        yield f"{measured.preemptions} requests were put back for want of memory"
    if measured.cached is not None and measured.cached > _CACHED:
        yield f"{measured.cached:.0%} of the prompt tokens came from the prefix cache"
    if measured.agree is False:
        yield "the answers and the engine's counters disagree on acceptance"


def _sent(measured: Window, samples: Sequence[EngineSample]) -> Iterator[str]:
    """What an open loop sent that it should not have, or did not send."""
    first, last = samples[0], samples[-1]
    sent, skipped = last.sent - first.sent, last.skipped - first.skipped
    if skipped:
        yield f"{skipped} of {sent + skipped} requests were not sent: {measured.cell.load} were under way"
    due = measured.cell.per_s * measured.seconds
    if abs(sent + skipped - due) > max(_OFF * due, 3 * math.sqrt(due)):
        yield f"{_per(sent, measured.seconds):.3g} requests/s were sent, not {measured.cell.per_s:g}"


def _silent(samples: Sequence[EngineSample]) -> float:
    """The longest time between pages; of a simulated engine none, as its clock stands still with it."""
    if samples[0].work.simulated:
        return 0.0
    return max((now.at - before.at for before, now in pairwise(samples)), default=0.0)


def _behind(measured: Window) -> float:
    """Share of a request's time that it waited for our own event loop: once to be sent, once to be read."""
    return _per(2 * measured.late_s, measured.request_s.mean) if measured.request_s else 0.0


def _per(amount: float, base: float) -> float:
    return amount / base if base > 0 else 0.0


def _more(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _fell(before: EngineWork, after: EngineWork) -> bool:
    def counters(work: EngineWork) -> tuple[float, ...]:
        reading = work.reading
        clock_s = work.simulated.clock_s if work.simulated else 0.0
        return reading.generation_tokens, reading.prompt_tokens, reading.finished, clock_s

    return any(now < then for then, now in zip(counters(before), counters(after), strict=True))


def _rates(samples: Sequence[EngineSample]) -> NDArray[np.float64]:
    """Tokens per second between samples; while the engine's clock stands still there is no time between."""
    written = np.diff([sample.work.reading.generation_tokens for sample in samples])
    seconds = np.array([elapsed(before, after) for before, after in pairwise(samples)])
    rates: NDArray[np.float64] = written[seconds > 0] / seconds[seconds > 0]
    return rates


def _stderr(samples: Sequence[EngineSample]) -> float:
    """Return the standard error of the rate, by batch means; 0 where there are too few samples.

    The window is cut into 6 to 20 stretches of at least two samples. Where neighbouring stretches are alike
    (lag-1 correlation r, corrected for its bias of -1 over their number) they count for fewer: the variance
    grows by (1 + r) / (1 - r), as for a first-order process. Few stretches know their own scatter badly:
    Student's t over the normal quantile, so that 1.96 of what is returned is a 95% interval.
    """
    fewest, most = _STRETCHES
    stretches = min(most, (len(samples) - 1) // _SAMPLES_PER_STRETCH)
    if stretches < fewest:
        return 0.0
    edges = np.linspace(0, len(samples) - 1, stretches + 1).round().astype(int)
    rates = _rates([samples[edge] for edge in edges])
    if len(rates) < stretches:
        return 0.0
    scatter = rates - rates.mean()
    squares = float(scatter @ scatter)
    if not squares:
        return 0.0
    alike = min(max(float(scatter[1:] @ scatter[:-1]) / squares + 1 / stretches, 0.0), _MOST_ALIKE)
    variance = squares / (stretches - 1) / stretches * (1 + alike) / (1 - alike)
    return _student(stretches - 1) / Z95 * math.sqrt(variance)


def _student(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t, to 1% from 5 degrees of freedom on.

    Source: Abramowitz and Stegun, 26.7.5.
    """
    z = Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _spread(times: Iterable[float], faster: float) -> Spread | None:
    """Summarize times; percentiles are interpolated between the two nearest (numpy's `linear`)."""
    seconds = faster * np.array(list(times))
    if not len(seconds):
        return None
    return Spread(float(seconds.mean()), *(float(value) for value in np.percentile(seconds, (50, 95, 99))))


def _steps(before: EngineWork, after: EngineWork) -> tuple[float | None, float | None]:
    """Return tokens per step and seconds of a step; an answer's first token is no step's."""
    first_tokens, steps = _more(before.first_tokens, after.first_tokens), _more(before.steps, after.steps)
    seconds = _more(before.steps_s, after.steps_s)
    if first_tokens is None or not steps or seconds is None:
        return None, None
    tokens = after.reading.generation_tokens - before.reading.generation_tokens
    scale = after.simulated.time_scale if after.simulated else 1.0
    return (tokens - first_tokens) / steps, scale * seconds / steps


def _cached(before: EngineWork, after: EngineWork) -> float | None:
    hits, queries = (
        _more(before.cache_hits, after.cache_hits),
        _more(before.cache_queries, after.cache_queries),
    )
    return None if hits is None or not queries else hits / queries


def _speculation(before: EngineSample, after: EngineSample) -> Speculation | None:
    return gain(before.work.reading.speculation, after.work.reading.speculation)


def _told(records: Iterable[EndedRequest]) -> Speculation | None:
    return reduce(total, (record.speculation for record in records if record.speculation), None)


def _agree(
    samples: Sequence[EngineSample],
    first: EngineSample,
    last: EngineSample,
    records: Sequence[EndedRequest],
    ended: Sequence[EndedRequest],
) -> bool | None:
    """Whether answers and counters agree; None where either is silent, or some answers are.

    Where every request of the cell was answered, all that was counted from idle to idle is compared, and must
    be equal, or almost; else the lengths of the window, which hold parts of other requests: within 2%, or
    three standard errors of the answers'.
    """
    start, stop = samples[0], samples[-1]
    whole = not (start.load or stop.load or any(record.error for record in records))
    if whole and len(records) == stop.sent - start.sent:
        counted, told = _speculation(start, stop), _told(records)
        if counted is None or told is None or not all(record.speculation for record in records):
            return None
        return _near(told.drafts, counted.drafts, _EXACT) and _near(told.accepted, counted.accepted, _EXACT)
    counted, told = _speculation(first, last), _told(ended)
    answers = [record.speculation for record in ended if record.speculation]
    if (
        counted is None
        or told is None
        or counted.length is None
        or told.length is None
        or len(answers) < len(ended)
    ):
        return None
    apart = np.array([one.accepted - (told.length - 1) * one.drafts for one in answers])
    allowed = max(_ALIKE * counted.length, 3 * math.sqrt(apart @ apart) / told.drafts)
    return abs(told.length - counted.length) <= allowed


def _near(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(one, other)
