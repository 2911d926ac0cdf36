"""What Prometheus reads at /metrics. Labels name routes, statuses and models, and nobody's key."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_CAPTURE = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)


class Metrics:
    """The numbers of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("trivium_requests", "requests answered", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "trivium_request_seconds", "from request to end", ["route"], buckets=_SECONDS, registry=registry
        )
        self.capture = Histogram(
            "trivium_capture_seconds", "until an exchange is in the store", buckets=_CAPTURE, registry=registry
        )
        self.tokens = Counter("trivium_tokens", "tokens read and said", ["model", "kind"], registry=registry)
        self.active = Gauge("trivium_active", "requests under way", registry=registry)
        self.refused = Counter("trivium_refused", "requests told to come again", ["limit"], registry=registry)
        self.unwritten = Counter("trivium_unwritten", "tries to write that failed", registry=registry)
        self.cuts = Counter("trivium_cut", "replies that were broken off", ["how"], registry=registry)
        self.episodes = Counter("trivium_episodes", "sessions that became episodes", registry=registry)
        self.swaps = Counter("trivium_swaps", "weights taken over", ["outcome"], registry=registry)
        self.version = Gauge("trivium_version", "the version that speaks", ["model"], registry=registry)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
