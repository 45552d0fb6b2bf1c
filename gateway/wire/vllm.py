"""vLLM's own formats: the metrics page and the error body that its clients and scrapers read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FINISH_REASONS = ("stop", "length", "abort", "error")

_ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What an engine has done since it started, and what it has to do now.

    Attributes:
        running: requests being worked on.
        waiting: requests taken in and not begun.
        prompt_tokens: prompt tokens read, in all.
        generation_tokens: tokens written, in all.
        finished: finished requests by finish reason (FINISH_REASONS).
    """

    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)


def metrics_page(counts: EngineCounts, model: str, *, engine: str = "0") -> str:
    """Write an engine's GET /metrics page (Prometheus text format 0.0.4) with vLLM's names and labels."""
    return "\n".join(_metrics_lines(counts, f'engine="{engine}",model_name="{_escaped(model)}"')) + "\n"


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """Write vLLM's error object; its `code` is the HTTP status."""
    error = {
        "message": message,
        "type": _ERROR_TYPES.get(status, "InternalServerError"),
        "param": param,
        "code": status,
    }
    return msgspec.json.encode({"error": error})


def _metrics_lines(counts: EngineCounts, labels: str) -> Iterator[str]:
    for name, kind, text, value in (
        ("num_requests_running", "gauge", "Number of requests in model execution batches.", counts.running),
        ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", counts.waiting),
        ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", counts.prompt_tokens),
        (
            "generation_tokens_total",
            "counter",
            "Number of generation tokens processed.",
            counts.generation_tokens,
        ),
    ):
        yield f"# HELP vllm:{name} {text}"
        yield f"# TYPE vllm:{name} {kind}"
        yield f"vllm:{name}{{{labels}}} {float(value)}"
    yield "# HELP vllm:request_success_total Count of successfully processed requests."
    yield "# TYPE vllm:request_success_total counter"
    for reason in FINISH_REASONS:
        yield (
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} '
            f"{float(counts.finished.get(reason, 0))}"
        )


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
