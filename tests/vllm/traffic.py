"""Clients as users write them, a gateway in a process of its own, and what it exports of their requests."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from bench.serving import Served, serve
from tests.support import data_url, png
from tests.vllm.engines import MODEL, Counts, Server
from tests.vllm.tiny_model import DOCUMENTS, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

PROMPTS = {
    "text": "Text Recognition:",
    "key-value": "Output the value of total",
    "table": "Table Recognition:",
}
ROUTES = tuple(PROMPTS)
# For so long the gateway may hold a figure back that the engine's counters have yet to bear out.
HELD_BACK_S = 35
# More readings of an engine than it takes to see that it has come to rest.
_READINGS = 5
_WITHIN_S = 60
_PICTURE = data_url(png("page"))


@dataclass(frozen=True)
class Kind:
    """One way to ask; `told`: the answer tells all of its speculation, where the engine does so at all.

    Attributes:
        name: of it.
        options: further members of the request.
        stream: it is streamed.
        take: so many chunks are read, and the connection is closed.
        completion: asked of /v1/completions.
        told: see above.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    take: int | None = None
    completion: bool = False
    told: bool = True


_STOP = DOCUMENTS["table"].tokens[60].decode().strip(" |")
_SAMPLED = {"temperature": 1.0, "max_tokens": 60}  # greedy decoding has but one answer
_USAGE = {"stream_options": {"include_usage": True}}
KINDS = (
    Kind("whole"),
    Kind("stream", stream=True),
    Kind("usage", _USAGE, stream=True),
    Kind(
        "continuous-usage", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, True
    ),
    Kind("token-ids", {"extra_body": {"return_token_ids": True}}, stream=True),
    Kind("logprobs", {"logprobs": True, "top_logprobs": 2}, stream=True),
    Kind("truncated", {"max_tokens": 80}),
    Kind("truncated-stream", {"max_tokens": 80}, stream=True),
    Kind("past-the-end", {"max_tokens": 400, "extra_body": {"ignore_eos": True}}, stream=True),
    Kind("stop-not-met", {"stop": ["@@"]}, stream=True),
    Kind("completion", completion=True),
    Kind("completion-stream", completion=True, stream=True),
    Kind("completion-echo", {"echo": True}, completion=True, stream=True),
    Kind("first-token-only", {"max_tokens": 1}, stream=True),
    Kind("stop-string", {"stop": [_STOP]}, told=False),
    Kind("stop-string-stream", {"stop": [_STOP]}, stream=True, told=False),
    Kind("two-choices", {"n": 2, **_SAMPLED}, told=False),
    Kind("two-choices-stream", {"n": 2, **_SAMPLED}, stream=True, told=False),
    Kind("left", stream=True, take=15, told=False),
)


class Answer(NamedTuple):
    """What came; `chunks` are those of a stream that carried tokens."""

    text: str
    chunks: int


class Client:
    """OpenAI's own, at a gateway or at an engine."""

    def __init__(self, url: str) -> None:
        self.openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)

    def ask(self, route: str, kind: Kind = KINDS[0]) -> Answer:
        """Ask for a document."""
        options: dict[str, Any] = {"model": MODEL, "stream": kind.stream, **kind.options}
        if kind.completion:
            options = {"max_tokens": 1000, **options}
            create = self.openai.completions.create
            answer: Any = create(prompt=PROMPTS[route] + start(route), **options)
        else:
            text = {"type": "text", "text": PROMPTS[route]}
            picture = {"type": "image_url", "image_url": {"url": _PICTURE}}
            messages: Any = [{"role": "user", "content": [picture, text]}]
            answer = self.openai.chat.completions.create(messages=messages, **options)
        if not kind.stream:
            return Answer(_said(answer.choices[0]), 0)
        with answer:
            chunks = [chunk for chunk, _ in zip(answer, range(kind.take or 10_000), strict=False)]
        choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
        steps = sum(not getattr(getattr(choice, "delta", None), "role", None) for choice in choices)
        return Answer("".join(map(_said, choices)), steps)

    def ask_all(self, asks: Iterable[tuple[str, Kind]], at_once: int = 6) -> list[Answer]:
        """Ask some at a time; return the answers in the order asked."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda ask: self.ask(*ask), asks))


def _said(choice: Any) -> str:
    said = choice.text if hasattr(choice, "text") else getattr(choice, "message", None) or choice.delta
    return said if isinstance(said, str) else said.content or ""


class Series:
    """One reading of the gateway's /metrics; names go without the prefix."""

    def __init__(self, page: str) -> None:
        self._values = {
            (sample.name.removeprefix("ocr_gateway_"), frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    def each(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return a metric's samples that have these labels."""
        wanted = labels.items()
        return {has: value for (its, has), value in self._values.items() if its == name and wanted <= has}

    def total(self, name: str, **labels: str) -> float:
        """Return their sum."""
        return sum(self.each(name, **labels).values())

    def spec(self, **labels: str) -> Counts:
        """Return what was accounted to requests; positions are not told apart by source."""
        return self._counts("spec", labels)

    def engine_spec(self, **labels: str) -> Counts:
        """Return the engines' own counters, as the gateway exports them."""
        return self._counts("engine_spec", labels)

    def _counts(self, kind: str, labels: dict[str, str]) -> Counts:
        by_position = {name: value for name, value in labels.items() if name != "source"}
        return Counts(
            self.total(f"{kind}_drafts_total", **labels),
            self.total(f"{kind}_draft_tokens_total", **labels),
            self.total(f"{kind}_accepted_tokens_total", **labels),
            tuple(
                self.total(f"{kind}_accepted_tokens_per_position_total", **by_position, position=str(place))
                for place in range(3)
            ),
        )


class Gateway:
    """A running `ocr-gateway serve` in front of real engines."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.client = Client(served.url)

    def series(self) -> Series:
        """Read /metrics."""
        return Series(self.served.get("/metrics"))

    def until(self, done: Callable[[Series], bool], within_s: float = _WITHIN_S) -> Series:
        """Read it until it is as wanted, or the time is over."""
        end = time.monotonic() + within_s
        while not done(series := self.series()) and time.monotonic() < end:
            time.sleep(0.2)
        return series

    def settled(self) -> Series:
        """Read it once nothing is in flight, and every engine's counters have been read since.

        Raises:
            TimeoutError: that does not come.
        """
        end = time.monotonic() + _WITHIN_S
        read: dict[object, int] = {}
        before: Mapping[Any, float] = {}
        while not read or min(read.values()) < _READINGS:
            if time.monotonic() > end:
                raise TimeoutError(f"the gateway does not come to rest: {read}")
            time.sleep(0.05)
            series = self.series()
            ages = series.each("engine_scrape_age_seconds")
            if series.total("in_flight"):
                read = {}
            else:
                read = {
                    engine: read.get(engine, 0) + (age < before.get(engine, 0.0))
                    for engine, age in ages.items()
                }
            before = ages
        return series


@contextmanager
def gateway(folder: Path, pools: Mapping[str, Sequence[Server]], **sections: Any) -> Iterator[Gateway]:
    """Serve engines by pool until the block is left; `sections` are further ones of routes.yaml."""
    values = {
        "model": MODEL,
        "pools": {
            name: {
                "engines": [engine.url for engine in engines],
                "speculative_config": engines[0].speculative_config,
            }
            for name, engines in pools.items()
        },
        "routes": {route: {"timeouts": {"first_event_s": 120, "idle_s": 120}} for route in ROUTES},
        "polling": {"scrape_s": 0.2, "stale_s": 5},
        "server": {"linger_s": 0.1, "drain_s": 5},
        **sections,
    }
    path = folder / "routes.yaml"
    path.write_text(yaml.safe_dump(values))
    with (folder / "gateway.log").open("ab") as log, serve(path, log.fileno()) as served:
        running = Gateway(served)
        with running.client.openai:
            yield running
