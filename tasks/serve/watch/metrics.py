"""Prometheus metrics of one process: vLLM's names where vLLM has the metric, and ours beside them.

Names, buckets and the label `model_name` are those of vllm/v1/metrics/loggers.py, so vLLM's dashboards work. Times
are those of this server, guards included. Tokens are counted once, at the end of a request, as booked for its key.

Labels are bounded: a model that isn't served, and a key or route beyond the limit, count as `other`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tasks.serve.watch.recent import Recent

OTHER = "other"
MOST_ROUTES = 64
_SECONDS = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
FIRST = tuple(map(float, _SECONDS.split()))
TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
SHORT = (0.001, 0.005, 0.02, 0.1)  # before WHOLE, for phases that are over in milliseconds on a small model
COUNTS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
ALIASES = {  # an older name, or ours, for the same series
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
    "vllm:request_queue_time_seconds": "gristmill_queue_seconds",
}


class Metrics:
    """Every series of this process."""

    def __init__(self, keys: int, window: int) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self.window, self._keys, self._routes = window, Bounded(keys), Bounded(MOST_ROUTES)
        self.of_models: dict[str, OfModel] = {}
        model = ["model_name"]
        self.histograms = {
            name: Histogram(f"vllm:{name}", text, model, registry=self.registry, buckets=buckets)
            for name, text, buckets in (
                ("time_to_first_token_seconds", "From the request to its first token.", FIRST),
                ("inter_token_latency_seconds", "Between two tokens of an answer.", TOKEN),
                ("e2e_request_latency_seconds", "From the request to the end of its answer.", WHOLE),
                ("request_queue_time_seconds", "From the request to the engine.", SHORT + WHOLE),
                ("request_prefill_time_seconds", "From the engine to the first token.", SHORT + WHOLE),
                ("request_decode_time_seconds", "From the first token to the last.", SHORT + WHOLE),
                ("request_prompt_tokens", "Prompt tokens of a request.", COUNTS),
                ("request_generation_tokens", "Tokens of an answer.", COUNTS),
                ("request_params_max_tokens", "The request's limit of tokens.", COUNTS),
            )
        }
        self.counters = {
            name: Counter(name, text, labels, registry=self.registry)
            for name, text, labels in (
                ("vllm:prompt_tokens", "Prompt tokens, at the end of each request.", model),
                ("vllm:generation_tokens", "Tokens sent, at the end of each request.", model),
                ("vllm:request_success", "Answers by finish reason.", [*model, "finished_reason"]),
                ("gristmill_requests", "Requests by route and status.", ["route", "status"]),
                ("gristmill_guard_verdicts", "Findings of the guards.", ["rule", "direction", "action"]),
                ("gristmill_cost_usd", "Money booked for a key.", ["key"]),
                ("gristmill_engine_restarts", "Restarts of a dead engine.", model),
                ("gristmill_audit_lost", "Audit lines that could not be kept.", []),
            )
        }
        self.by_model = {
            name: Gauge(name, text, model, registry=self.registry)
            for name, text in (
                ("vllm:num_requests_running", "Requests in the engine."),
                ("vllm:num_requests_waiting", "Requests in the queue."),
                ("gristmill_ready", "1 if the engine has answered its last check."),
            )
        }
        self.audit_failing = Gauge(
            "gristmill_audit_failing", "1 while the audit log can't be written.", registry=self.registry
        )
        self.release = Info("gristmill_release", "The release behind a model.", model, registry=self.registry)
        self.registry.register(Aliases(self.histograms.values()))

    def serves(self, name: str, release: Mapping[str, str]) -> None:
        """A model that has series of its own from now on, and the release behind it."""
        self.release.labels(name).info({key: value for key, value in release.items() if key != "model_name"})
        if name not in self.of_models:
            self.of_models[name] = OfModel(self, name)
        self.of_models[name].release = dict(release)

    def of(self, model: str) -> OfModel:
        """The series of a model, or of `other` if it isn't served."""
        label = model if model in self.of_models else OTHER
        if label not in self.of_models:
            self.of_models[label] = OfModel(self, label)
        return self.of_models[label]

    def key(self, key: str) -> str:
        """The label of a key."""
        return self._keys.label(key)

    def ended(self, route: str, status: int) -> None:
        """Count a request."""
        self.counters["gristmill_requests"].labels(self._routes.label(route), str(status)).inc()

    def page(self) -> bytes:
        """The page that Prometheus reads."""
        return generate_latest(self.registry)


class OfModel:
    """The series of one model, looked up once: a look-up costs more than an observation."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.name, self.release = name, dict[str, str]()
        self.observe = {short: found.labels(name).observe for short, found in metrics.histograms.items()}
        self.observe_token = self.observe["inter_token_latency_seconds"]
        self.prompt_tokens = metrics.counters["vllm:prompt_tokens"].labels(name).inc
        self.generation_tokens = metrics.counters["vllm:generation_tokens"].labels(name).inc
        self.finished = partial(metrics.counters["vllm:request_success"].labels, name)
        self.restarts = metrics.counters["gristmill_engine_restarts"].labels(name)
        gauges = metrics.by_model.items() if name != OTHER else ()  # what isn't served is neither ready nor busy
        self._gauges = {short.rpartition("_")[2]: gauge.labels(name) for short, gauge in gauges}
        self.state = dict.fromkeys([*self._gauges, "restarts"], 0)  # as the status shows it
        self.first, self.token, self.whole = (Recent(metrics.window) for _ in range(3))

    def set(self, name: str, value: int) -> None:
        """Set the gauge `running`, `waiting` or `ready`, which `other` lacks."""
        if name in self._gauges:
            self._gauges[name].set(value)
            self.state[name] = value

    def restarted(self) -> None:
        """Count a restart of the engine."""
        self.restarts.inc()
        self.state["restarts"] += 1


class Bounded:
    """Label values, of which only the first `most` are kept apart."""

    def __init__(self, most: int) -> None:
        self._most, self._known = most, set[str]()

    def label(self, value: str) -> str:
        """The value, or `other`."""
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


class Aliases(Collector):
    """The same histograms under a second name."""

    def __init__(self, histograms: Iterable[Histogram]) -> None:
        self._histograms = list(histograms)

    def collect(self) -> Iterator[Metric]:
        """Copies of the metrics that have another name, made when the page is read."""
        for histogram in self._histograms:
            for metric in histogram.collect():
                if alias := ALIASES.get(metric.name):
                    copy = Metric(alias, metric.documentation, metric.type)
                    copy.samples = [
                        sample._replace(name=alias + sample.name.removeprefix(metric.name)) for sample in metric.samples
                    ]
                    yield copy
