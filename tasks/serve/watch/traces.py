"""OpenTelemetry spans by its names for generative AI, if an endpoint is configured. They hold no content and no key.

Names follow the semantic conventions for GenAI (status "development"). A caller's W3C `traceparent` is the parent.
The SDK is an extra, `gristmill[otel]`, and is imported only here. It reads its usual variables, such as
OTEL_EXPORTER_OTLP_HEADERS for a collector that needs a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from storage.errors import ConfigError
from tasks.checks.extras import install
from tasks.serve.watch.config import TracesConfig

OPERATIONS = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}  # others are chats


class Traces:
    """Exports a span for each request, in a thread of the SDK. `exporter` replaces the one that sends to the endpoint.

    Raises ConfigError without the extra."""

    def __init__(self, config: TracesConfig, exporter: Any = None) -> None:
        try:
            sdk, export = import_module("opentelemetry.sdk.trace"), import_module("opentelemetry.sdk.trace.export")
            sampling, resources = (
                import_module(f"opentelemetry.sdk.{name}") for name in ("trace.sampling", "resources")
            )
            if exporter is None:
                otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
                exporter = otlp.OTLPSpanExporter(endpoint=config.endpoint)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"traces.endpoint needs the extra otel, which lacks {error.name} here.",
                f"Install it: {install('otel')}",
            ) from error
        self._trace: Any = import_module("opentelemetry.trace")
        self._context: Any = import_module(
            "opentelemetry.trace.propagation.tracecontext"
        ).TraceContextTextMapPropagator()
        named = {"service.name": "gristmill"}
        self._provider = sdk.TracerProvider(
            resource=resources.Resource.create(named),
            sampler=sampling.ParentBased(sampling.TraceIdRatioBased(config.share)),
        )
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("gristmill.serve")

    def add(self, record: Mapping[str, Any], began: int, ended: int, headers: Mapping[str, str]) -> None:
        """Record a request by its audit record. Times are in nanoseconds since 1970. `headers` may hold a caller's
        traceparent and tracestate."""
        operation = OPERATIONS.get(record["route"], "chat")
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "gristmill",
            "gen_ai.request.model": record["model"],
            "gen_ai.request.max_tokens": record["max_tokens"],
            "gen_ai.response.id": record["id"],
            "gen_ai.response.finish_reasons": [record["finish"]] if record["finish"] else None,
            "gen_ai.usage.input_tokens": record["prompt_tokens"],
            "gen_ai.usage.output_tokens": record["completion_tokens"],
            "gen_ai.server.time_to_first_token": record["first_ms"] and record["first_ms"] / 1000,
            "http.route": record["route"],
            "http.response.status_code": record["status"],
            "error.type": str(record["status"]) if record["status"] >= 500 else None,
            "gristmill.release": record["release"],
            "gristmill.guards": [guard["rule"] for guard in record["guards"]] or None,
        }
        span = self._tracer.start_span(
            f"{operation} {record['model']}",
            context=self._context.extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes={name: value for name, value in attributes.items() if value is not None},
            start_time=began,
        )
        if record["status"] >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(ended)

    def close(self) -> None:
        """Send what waits, and end."""
        self._provider.shutdown()
