"""The only user of OpenTelemetry: a request's spans, and their way to a collector.

Imported only where tracing is asked for (app): elsewhere its packages may be missing, and cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.semconv.attributes import (
    error_attributes,
    http_attributes,
    server_attributes,
    service_attributes,
    url_attributes,
)
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.re import parse_env_headers

import gateway
from gateway.errors import ClientLeft, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

    from gateway.model import Engine, RequestRecord

log = logging.getLogger(__name__)

_NAME = "ocr-gateway"
# What a stop waits for at most until the last spans are sent.
_FLUSH_S = 3.0
_QUEUE = 2048
_W3C = TraceContextTextMapPropagator()
_HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")


class StageSpan:
    """A span that ends with its block, or before."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def context(self) -> dict[str, str]:
        """The headers that make another process's spans its children."""
        headers: dict[str, str] = {}
        _W3C.inject(headers, set_span_in_context(self._span, Context()))
        return headers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._span.is_recording():
            left = isinstance(error, (ClientLeft, asyncio.CancelledError, GeneratorExit))
            # Never the message: it may quote the request.
            code = "client_left" if left else getattr(error, "code", None) or type(error).__name__
            self._span.set_attribute(error_attributes.ERROR_TYPE, code)
            if not left:
                self._span.set_status(Status(StatusCode.ERROR))
        self.end()

    def answered(self, status: int) -> None:
        """Note the status of an engine's answer."""
        self._span.set_attribute(http_attributes.HTTP_RESPONSE_STATUS_CODE, status)

    def end(self) -> None:
        """End the span, unless it has ended."""
        if self._span.is_recording():
            self._span.end()


class Trace:
    """The spans of one request that is sampled; the request's own span ends with `end`."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = set_span_in_context(span, Context())
        self._attempts = 0

    @property
    def trace_id(self) -> str:
        """The trace's id, as its viewers show it."""
        return format_trace_id(self._span.get_span_context().trace_id)

    def stage(self, name: str) -> StageSpan:
        """Begin a stage of the request's path."""
        return StageSpan(self._tracer.start_span(name, self._context))

    def attempt(self, engine: Engine, path: str) -> StageSpan:
        """Begin an attempt at an engine, which gets the span's context."""
        url = urlsplit(engine.url)
        attributes: dict[str, AttributeValue] = {
            http_attributes.HTTP_REQUEST_METHOD: "POST",
            url_attributes.URL_FULL: engine.url + path,
            server_attributes.SERVER_ADDRESS: url.hostname or "",
            server_attributes.SERVER_PORT: url.port or (443 if url.scheme == "https" else 80),
            "ocr.pool": engine.pool,
            "ocr.engine": engine.name,
            "ocr.depth": engine.depth,
        }
        if self._attempts:
            attributes[http_attributes.HTTP_REQUEST_RESEND_COUNT] = self._attempts
        self._attempts += 1
        return StageSpan(self._tracer.start_span("attempt", self._context, SpanKind.CLIENT, attributes))

    def end(self, record: RequestRecord) -> None:
        """End the request's span with what is known of it."""
        usage, speculation = record.usage, record.speculation
        first_token_s, length = record.first_token_s, record.acceptance_length
        # Those in gen_ai are what vLLM calls the same figures in its own spans.
        known: dict[str, AttributeValue | None] = {
            "ocr.request_id": record.request_id,
            http_attributes.HTTP_RESPONSE_STATUS_CODE: record.code,
            error_attributes.ERROR_TYPE: record.error,
            "ocr.key": record.key,
            "ocr.route": record.route,
            "ocr.route.reason": record.reason,
            "ocr.pool": record.pool,
            "ocr.engine": record.engine,
            "ocr.depth": record.depth,
            "ocr.retries": len(record.retried) or None,
            "gen_ai.latency.time_in_queue": round(record.waited_s, 4) or None,
            "gen_ai.latency.time_to_first_token": round(first_token_s, 4) if first_token_s else None,
            "gen_ai.usage.prompt_tokens": usage.prompt_tokens if usage else None,
            "gen_ai.usage.completion_tokens": usage.completion_tokens if usage else None,
            "ocr.speculation.drafts": speculation.drafts if speculation else None,
            "ocr.speculation.accepted": speculation.accepted if speculation else None,
            "ocr.speculation.acceptance_length": round(length, 4) if length else None,
            "ocr.speculation.source": record.speculation_source,
        }
        told = {name: value for name, value in known.items() if value is not None and value != ""}
        self._span.set_attributes(told)
        if record.code >= 500:  # a client's mistake is no error of the server's
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class Tracing:
    """Where spans come from and go to, for as long as a gateway runs."""

    def __init__(self, processor: SpanProcessor) -> None:
        """Send spans on.

        Args:
            processor: gets every span that is sampled (OTEL_TRACES_SAMPLER).
        """
        ours = {
            service_attributes.SERVICE_NAME: _NAME,
            service_attributes.SERVICE_VERSION: gateway.__version__,
        }
        resource = Resource.create(ours).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(_NAME, gateway.__version__)
        # From here on the library would tell of every span that is lost, as the exporter here does once, and
        # quote clients' headers that are wrong.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    @classmethod
    def to_collector(cls) -> Self:
        """Send spans to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, in batches, from a thread.

        Raises:
            ConfigError: a variable asks for what this does not do.
        """
        for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            if os.environ.get(name, "http/protobuf") != "http/protobuf":
                raise ConfigError([f"{name}: spans go out by http/protobuf only (port 4318 of a collector)"])
        _check_headers()
        try:
            return cls(_Batches(_Exporter(OTLPSpanExporter())))
        except ValueError as error:
            raise ConfigError([f"OTEL_*: {error}"]) from error

    def begin(
        self, path: str, model: str, context: Mapping[str, str]
    ) -> tuple[Trace | None, Mapping[str, str]]:
        """Begin a request's span.

        Args:
            path: the endpoint.
            model: the configured one.
            context: the client's own, valid trace context; empty where it sent none.

        Returns:
            The trace, None where it is not sampled, and the context that stands for it then.
        """
        attributes: dict[str, AttributeValue] = {
            http_attributes.HTTP_REQUEST_METHOD: "POST",
            http_attributes.HTTP_ROUTE: path,
            url_attributes.URL_PATH: path,
            url_attributes.URL_SCHEME: "http",
            "gen_ai.operation.name": "text_completion" if path == "/v1/completions" else "chat",
            "gen_ai.request.model": model,
        }
        parent = _W3C.extract(context, Context())
        span = self._tracer.start_span(f"POST {path}", parent, SpanKind.SERVER, attributes)
        if span.is_recording():
            return Trace(self._tracer, span), context
        return None, StageSpan(span).context

    async def close(self) -> None:
        """Send what is left, for a few seconds at most: a stop waits for no collector."""
        flush = threading.Thread(target=self._provider.shutdown, daemon=True)
        flush.start()
        await asyncio.to_thread(flush.join, _FLUSH_S)


class _Exporter(SpanExporter):
    """Sends batches; the log hears of a collector that takes none once, and once when it takes them again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                log.warning(
                    "tracing: the collector takes no spans; they are dropped until it does, without a word"
                )
            self._lost += len(spans)
        elif self._lost:
            log.warning("tracing: the collector takes spans again; %d were dropped", self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Batches(BatchSpanProcessor):
    """A bounded queue of spans before a thread that sends them; the log hears once that it is full."""

    def __init__(self, exporter: _Exporter) -> None:
        size = os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE") or str(_QUEUE)
        if not size.isdecimal():
            raise ValueError("OTEL_BSP_MAX_QUEUE_SIZE must be an integer")
        super().__init__(exporter, max_queue_size=int(size))
        self._sender = exporter
        self._most = int(size)
        self._put = 0
        self._full = False

    def on_end(self, span: ReadableSpan) -> None:
        if self._put - self._sender.taken >= self._most:
            if not self._full:
                self._full = True
                log.warning(
                    "tracing: more spans come than can be sent: from here on, some are dropped silently "
                    "(OTEL_TRACES_SAMPLER, OTEL_BSP_MAX_QUEUE_SIZE)"
                )
            return
        self._put += 1
        super().on_end(span)


def _check_headers() -> None:
    """Tell of headers for the collector that are none; the library would quote them, a key's value too."""
    logging.getLogger(parse_env_headers.__module__).setLevel(logging.CRITICAL)
    for name in _HEADERS:
        wanted = [part for part in os.environ.get(name, "").split(",") if part.strip()]
        if len(parse_env_headers(",".join(wanted), liberal=True)) < len(wanted):
            log.warning("%s: not all of it is name=value, separated by commas: the rest is not sent", name)
