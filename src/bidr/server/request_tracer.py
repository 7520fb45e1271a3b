"""OpenTelemetry traces (extra `traces`): a span for each request, and one for each step of a search.

The exporter is configured by the variables of OpenTelemetry (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and
others). Spans are made when the answer has been sent, and exported by a thread of their own.
"""

import time
from collections.abc import Mapping
from typing import Any

from bidr.errors import MissingExtraError
from bidr.search.types import STEPS, Timings

NANOSECONDS = 1_000_000


class RequestTracer:
    """Makes the spans of requests. `provider`: a TracerProvider of the OpenTelemetry SDK."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider, self._tracer = provider, provider.get_tracer("bidr")
        self._propagator, self._kind, self._error = TraceContextTextMapPropagator(), SpanKind.SERVER, StatusCode.ERROR

    def record(
        self,
        method: str,
        path: str,
        status: int,
        seconds: float,
        headers: Mapping[bytes, bytes],
        fields: Mapping[str, Any],
        steps: Timings | None,
    ) -> None:
        """Record a request that has been answered just now.

        Args:
            method: HTTP method.
            path: the route.
            status: of the response.
            seconds: from its first byte to the last of the response.
            headers: of the request; `traceparent` names the span that it belongs to.
            fields: attributes, such as the number of queries.
            steps: milliseconds of each step of a search.
        """
        from opentelemetry.trace import set_span_in_context

        end = time.time_ns()
        start = end - round(1e9 * seconds)
        carrier = {
            name: headers[name.encode()].decode("latin-1")
            for name in ("traceparent", "tracestate")
            if name.encode() in headers
        }
        attributes = {f"bidr.{name}": value for name, value in fields.items() if isinstance(value, str | int | float)}
        span = self._tracer.start_span(
            f"{method} {path}",
            context=self._propagator.extract(carrier),
            kind=self._kind,
            start_time=start,
            attributes={"http.request.method": method, "http.route": path, "http.response.status_code": status}
            | attributes,
        )
        if status >= 500:
            span.set_status(self._error)
        if steps is not None:
            context, begin = set_span_in_context(span), start
            for name, milliseconds in zip(STEPS, steps, strict=True):
                child = self._tracer.start_span(name, context=context, start_time=begin)
                begin += round(NANOSECONDS * milliseconds)
                child.end(begin)
        span.end(end)

    def close(self) -> None:
        """Export what is left."""
        self._provider.shutdown()


def check_packages() -> None:
    """Raise MissingExtraError if the packages of the extra are not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--traces", error.name or "opentelemetry-sdk", "traces") from error


def open_tracer() -> RequestTracer:
    """Return a tracer that exports by OTLP over HTTP."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "bidr"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return RequestTracer(provider)
