"""A span for each request, in the trace of the client, with the steps of a search below it."""

import pytest
from sample_server import ask, made, opened, vector

from bidr.server.request_tracer import RequestTracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans():
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return RequestTracer(provider), exporter


def test_requests_are_traced(tmp_path, spans):
    service = opened(made(tmp_path / "index"))
    service.tracer, exporter = spans
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    assert ask(service, "POST", "/v1/search", json={"vectors": [vector(1)], "k": 3}, headers=headers).status_code == 200
    assert ask(service, "POST", "/v1/search", json={}).status_code == 422
    *steps, search, refused = exporter.get_finished_spans()
    assert [span.name for span in steps] == ["encode", "candidates", "reads", "ranking"]
    assert (search.name, refused.name) == ("POST /v1/search", "POST /v1/search")
    assert format(search.context.trace_id, "032x") == TRACE
    assert format(search.parent.span_id, "016x") == PARENT
    assert {span.parent.span_id for span in steps} == {search.context.span_id}
    assert search.attributes["bidr.queries"] == 1
    assert [span.attributes["http.response.status_code"] for span in (search, refused)] == [200, 422]
    assert all(search.start_time <= span.start_time <= span.end_time <= search.end_time for span in steps)
    service.tracer.close()
