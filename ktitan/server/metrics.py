"""Figures for Prometheus, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.registry import Collector

__all__ = ["Metrics"]

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("ktitan_requests", "Requests answered.", ["path", "status"], registry=registry)
        self._tokens = Counter("ktitan_tokens", "Tokens of prompts and answers.", ["kind"], registry=registry)
        self._cached = Counter(
            "ktitan_prompt_cached_tokens", "Of the prompts' tokens, those that were not run again.", registry=registry
        )
        self._jobs = Counter("ktitan_jobs", "Jobs of the model by how they ended.", ["end"], registry=registry)
        self._queued = Histogram("ktitan_queue_seconds", "Time in the queue.", buckets=_SECONDS, registry=registry)
        self._job_seconds = Histogram(
            "ktitan_job_seconds", "Time of a job on the model.", buckets=_SECONDS, registry=registry
        )
        self._phases = Counter("ktitan_phase_seconds", "Time of the model by phase.", ["phase"], registry=registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Show what `read` returns at each scrape."""
        Gauge(name, text, registry=self._registry).set_function(read)

    def tier_gauge(self, name: str, text: str, read: Callable[[], dict[str, float]]) -> None:
        """Show a figure by tier."""
        self._registry.register(_ByTier(name, text, read))

    def add(self, collector: Collector) -> None:
        """Show what `collector` gives at each scrape."""
        self._registry.register(collector)

    def count_request(self, path: str, status: int) -> None:
        """A response was sent."""
        self._requests.labels(path, str(status)).inc()

    def count_job(self, job: Any, queue_seconds: float, seconds: float, failed: bool) -> None:
        """The model is done with a job."""
        end = "failed" if failed else "cancelled" if job.stop_asked.is_set() else "finished"
        self._jobs.labels(end).inc()
        self._queued.observe(queue_seconds)
        self._job_seconds.observe(seconds)
        self._tokens.labels("prompt").inc(job.usage.prompt_tokens)
        self._cached.inc(job.usage.cached_tokens)
        self._tokens.labels("completion").inc(job.usage.completion_tokens)
        if job.stats is not None:
            self._phases.labels("prefill").inc(job.stats.prefill_seconds)
            self._phases.labels("decode").inc(job.stats.decode_seconds)

    def text(self, accept: str) -> tuple[bytes, str]:
        """The page and its type: OpenMetrics, or Prometheus' older text where only that is asked for."""
        if "text/plain" in accept and "openmetrics" not in accept:
            return plain_text(self._registry), "text/plain; version=0.0.4; charset=utf-8"
        return open_metrics(self._registry), CONTENT_TYPE_LATEST


class _ByTier:
    """A collector of one gauge with a label for the tier."""

    def __init__(self, name: str, text: str, read: Callable[[], dict[str, float]]) -> None:
        self._name, self._text, self._read = name, text, read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The figure as it stands."""
        family = GaugeMetricFamily(self._name, self._text, labels=["tier"])
        for tier, value in self._read().items():
            family.add_metric([tier], value)
        yield family
