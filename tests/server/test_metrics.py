"""Numbers that are counted together are those that would have been counted one by one."""

import random

import prometheus_client

from bidr.index.vectors import ReadStats
from bidr.search.types import Timings
from bidr.server.metrics import COUNTS, MAX_BUFFERED, SECONDS, Metrics, observe_many


def samples(registry):
    return {
        (each.name, *sorted(each.labels.items())): each.value for found in registry.collect() for each in found.samples
    }


def test_many_at_once_are_each_observed():
    values = [0.0, 0.0005, 0.00051, 3, 10, 11, 1e9, *(random.Random(1).random() for _ in range(200))]
    registries = prometheus_client.CollectorRegistry(), prometheus_client.CollectorRegistry()
    one, all_ = (prometheus_client.Histogram("h", "h", buckets=SECONDS, registry=registry) for registry in registries)
    for value in values:
        one.observe(value)
    observe_many(all_, values, SECONDS)
    observe_many(all_, [], SECONDS)
    alone, together = map(samples, registries)
    created = ("h_created",)
    assert alone.keys() == together.keys()
    assert {name for name in alone if name != created and abs(alone[name] - together[name]) > 1e-6} == set()


def test_recorded_requests_and_searches_are_rendered():
    metrics = Metrics()
    metrics.count_searches = lambda: 7
    for number in range(3):
        metrics.record_search(2, 100, Timings(0.0, 1.5, 0.25, 0.25), ReadStats(100, 60, 20, 4_096))
        metrics.record_request("/v1/search", 200, 0.004)
        metrics.record_request("/v1/search" if number else "other", 422, 0.001)
    for _ in range(2):  # told again, not counted again
        text = metrics.render()[0].decode()
        for line in (
            'bidr_requests_total{path="/v1/search",status="200"} 3.0',
            'bidr_requests_total{path="/v1/search",status="422"} 2.0',
            'bidr_requests_total{path="other",status="422"} 1.0',
            'bidr_request_seconds_count{path="/v1/search"} 5.0',
            'bidr_search_step_seconds_bucket{le="0.002",step="candidates"} 3.0',
            'bidr_search_step_seconds_bucket{le="0.001",step="candidates"} 0.0',
            'bidr_search_step_seconds_count{step="encode"} 0.0',
            'bidr_search_step_seconds_sum{step="total"} 0.006',
            "bidr_search_queries_sum 6.0",
            f'bidr_search_queries_bucket{{le="{COUNTS[1]:.1f}"}} 3.0',
            "bidr_vector_reads_total 300.0",
            "bidr_vector_hits_total 180.0",
            "bidr_disk_reads_total 60.0",
            "bidr_disk_read_bytes_total 12288.0",
            "bidr_queue 7.0",
        ):
            assert line in text, line


def test_buffered_records_are_bounded():
    metrics = Metrics()
    for _ in range(3 * MAX_BUFFERED):
        metrics.record_search(1, 1, Timings())
        metrics.record_request("/v1/search", 200, 0.001)
    assert max(len(metrics._request_log), len(metrics._search_log)) < MAX_BUFFERED
