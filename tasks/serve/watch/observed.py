"""The server's one place to report a request: metrics, percentiles, audit line, log line and span follow from it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tasks.serve.watch.audit import AuditLog
from tasks.serve.watch.config import WatchConfig
from tasks.serve.watch.logs import REQUEST, stamp
from tasks.serve.watch.metrics import OTHER, Metrics
from tasks.serve.watch.recent import SLICE_SECONDS, percentiles
from tasks.serve.watch.traces import Traces

FINISHES = {"stop", "length", "content_filter", "tool_calls", "error"}
RATE_SECONDS = 60
TOP_KEYS = 10
LONGEST_NAME = 100  # of a model that a request names, in the log
log = logging.getLogger("gristmill.serve")


class Finding(Protocol):
    """A guard's finding, as far as it is logged: the rule and the verdict, never the text."""

    @property
    def rule(self) -> str:
        """The rule's name."""

    @property
    def action(self) -> str:
        """The verdict: allow, mask or refuse."""

    @property
    def direction(self) -> str:
        """Where it was: input or output."""


class Watch:
    """Everything that watches one process. `folder` is the state folder. Raises StoreError and ConfigError."""

    def __init__(self, config: WatchConfig, folder: Path) -> None:
        self.metrics = Metrics(config.metrics.keys, config.metrics.window)
        self.began = time.monotonic()
        self.verdicts, self.statuses = Counter[tuple[str, str, str]](), Counter[str]()
        self.spent = dict[str, dict[str, float]]()  # by key
        self.audit: AuditLog | None = None
        self.traces: Traces | None = None
        self.hashes_clients = config.audit.client == "hashed"
        if config.traces.endpoint:
            self.traces = Traces(config.traces)
        if config.audit.enabled:
            lost = self.metrics.counters["gristmill_audit_lost"].inc
            self.audit = AuditLog(config.audit, folder, lost=lost, failing=self.metrics.audit_failing.set)

    def serves(self, model: str, release: Mapping[str, str]) -> None:
        """Name the release behind a model, such as its `digest`, at the start and after a swap. Other models count as
        `other`."""
        self.metrics.serves(model, release)

    @property
    def refusing(self) -> bool:
        """Whether new requests must be refused with 503, as `audit.required` is set and the log can't be written."""
        return self.audit is not None and self.audit.refusing

    def load(self, model: str, *, running: int, waiting: int) -> None:
        """Report how many requests of a model are in the engine and in the queue."""
        of = self.metrics.of(model)
        of.set("running", running)
        of.set("waiting", waiting)

    def ready(self, model: str, now: bool) -> None:
        """Report whether the engine of a model is ready."""
        self.metrics.of(model).set("ready", int(now))

    def restarted(self, model: str) -> None:
        """Report a restart of a model's engine."""
        self.metrics.of(model).restarted()

    def request(
        self,
        *,
        request_id: str,
        route: str,
        model: str = "",
        key: str = "",
        streamed: bool = False,
        client: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Observed:
        """Begin a request, as soon as it arrives. `route` is the route's pattern, not the path. `headers` may hold a
        trace's, in lower case."""
        REQUEST.set(request_id)
        return Observed(self, request_id, route, model, key, streamed, client, headers or {})

    def metrics_page(self) -> bytes:
        """The page for Prometheus, with the type prometheus_client.CONTENT_TYPE_LATEST."""
        return self.metrics.page()

    def status(self) -> dict[str, Any]:
        """The numbers of the status page, as JSON values: /status.json. Times are in seconds."""
        now = time.monotonic()
        models = self.metrics.of_models
        up = now - self.began
        counted = sum(part.counts(now, RATE_SECONDS).total() for of in models.values() for part in (of.first, of.token))
        span = RATE_SECONDS - SLICE_SECONDS + now % SLICE_SECONDS
        return {
            "time": stamp(time.time()),
            "uptime_seconds": round(up),
            "models": {name: {**of.state, "release": of.release} for name, of in models.items() if name != OTHER},
            "tokens_per_second": round(counted / max(1.0, min(span, up)), 1),
            "window_seconds": self.metrics.window,
            "latency": {
                "first_token": percentiles(of.first.counts(now) for of in models.values()),
                "token": percentiles(of.token.counts(now) for of in models.values()),
                "whole": percentiles(of.whole.counts(now) for of in models.values()),
            },
            "requests": dict(self.statuses),
            "keys": [
                {"key": key, **spent}
                for key, spent in sorted(self.spent.items(), key=lambda one: -one[1]["cost_usd"])[:TOP_KEYS]
            ],
            "guards": _as_json(self.verdicts),
            "audit": {
                "enabled": self.audit is not None,
                "failing": self.audit is not None and self.audit.failing,
                "lost": self.metrics.registry.get_sample_value("gristmill_audit_lost_total"),
            },
        }

    def close(self) -> None:
        """Write and send everything that waits."""
        if self.audit:
            self.audit.close()
        if self.traces:
            self.traces.close()


class Observed:
    """One request, from its arrival to its end. As a context it ends by itself, as an error or an abort, if the block
    didn't end it."""

    def __init__(
        self,
        watch: Watch,
        request_id: str,
        route: str,
        model: str,
        key: str,
        streamed: bool,
        client: str,
        headers: Mapping[str, str],
    ) -> None:
        self._watch, self._headers = watch, headers
        self.id, self.route, self.key, self.streamed, self._client = request_id, route, key, streamed, client
        self._began, self._began_utc = time.monotonic(), time.time_ns()
        self._started = self._first = self._last = 0.0
        self._max_tokens: int | None = None
        self._release = ""
        self._verdicts = Counter[tuple[str, str, str]]()  # rule, direction, action
        self.ended = False
        self.names(model)

    def names(self, model: str, key: str | None = None, streamed: bool | None = None) -> None:
        """Say what is known only after the request began: its model, key and form."""
        self.model, self._of = model, self._watch.metrics.of(model)
        self.key = self.key if key is None else key
        self.streamed = self.streamed if streamed is None else streamed

    def started(self, max_tokens: int | None = None, release: str | None = None) -> None:
        """The request leaves the queue for the engine. `release` is the digest of what answers it, if several releases
        share the model's name. A swap while it is answered doesn't change it."""
        self._started, self._max_tokens = time.monotonic(), max_tokens
        self._release = self._of.release.get("digest", "") if release is None else release
        self._of.observe["request_queue_time_seconds"](self._started - self._began)

    def first_token(self) -> None:
        """The first token is there. Not needed before `tokens`."""
        if not self._first:
            self._first = now = time.monotonic()
            self._of.observe["time_to_first_token_seconds"](now - self._began)
            self._of.first.add(now - self._began, now)

    def tokens(self, count: int = 1) -> None:
        """These tokens came together. The first of them are the first token."""
        now, last = time.monotonic(), self._last
        self._last = now
        if not last:
            self.first_token()
        elif count > 0:
            gap, observe = (now - last) / count, self._of.observe_token
            for _ in range(count):
                observe(gap)
            self._of.token.add(gap, now, count)

    def finding(self, finding: Finding) -> None:
        """A guard found something, `finding.count` times if it says so."""
        self._verdicts[finding.rule, finding.direction, finding.action] += getattr(finding, "count", 1)

    def end(
        self,
        *,
        status: int,
        finish: str | None,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cost: float = 0.0,
        request_text: str | None = None,
        answer_text: str | None = None,
        engine: str = "",
        client_gone: bool = False,
        reason: str | None = None,
    ) -> None:
        """End the request. Later calls do nothing. `finish` is None without an answer, and "error" if it broke off.
        Tokens and cost are those booked for the key. `reason` is the code of a refusal."""
        if self.ended:
            return
        self.ended = True
        now, of = time.monotonic(), self._of
        finish = "abort" if client_gone else finish
        self._count(now, status, finish, prompt_tokens, completion_tokens, cost)
        record = {
            "time": stamp(time.time()),
            "id": self.id,
            "key": self.key,
            "route": self.route,
            "model": self.model[:LONGEST_NAME],
            "release": self._release,
            "engine": engine,
            "streamed": self.streamed,
            "status": status,
            "reason": reason,
            "finish": finish,
            "guards": _as_json(self._verdicts),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "max_tokens": self._max_tokens,
            "cost_usd": cost,
            "first_ms": round((self._first - self._began) * 1000, 1) if self._first else None,
            "ms": round((now - self._began) * 1000, 1),
        }
        shown = ("route", "status", "reason", "finish", "prompt_tokens", "completion_tokens", "ms")
        facts = {name: record[name] for name in shown}
        log.log(logging.ERROR if status >= 500 else logging.INFO, "request", extra={"facts": facts})
        if traces := self._watch.traces:
            traces.add({**record, "model": of.name}, self._began_utc, time.time_ns(), self._headers)
        if audit := self._watch.audit:
            if self._client and self._watch.hashes_clients:
                record["client"] = audit.client(self._client)
            audit.put(record, request_text, answer_text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gone = isinstance(error, asyncio.CancelledError | GeneratorExit)
        self.end(status=499 if gone else 500, finish="error", client_gone=gone)

    def _count(
        self, now: float, status: int, finish: str | None, prompt_tokens: int, completion_tokens: int, cost: float
    ) -> None:
        of, watch = self._of, self._watch
        watch.metrics.ended(self.route, status)
        watch.statuses[str(status)] += 1
        of.prompt_tokens(prompt_tokens)
        of.generation_tokens(completion_tokens)
        for verdict, count in self._verdicts.items():
            watch.metrics.counters["gristmill_guard_verdicts"].labels(*verdict).inc(count)
        watch.verdicts.update(self._verdicts)
        if self.key:
            label = watch.metrics.key(self.key)
            watch.metrics.counters["gristmill_cost_usd"].labels(label).inc(cost)
            spent = watch.spent.setdefault(label, {"requests": 0, "tokens": 0, "cost_usd": 0.0})
            spent["requests"] += 1
            spent["tokens"] += prompt_tokens + completion_tokens
            spent["cost_usd"] += cost
        if finish is None:
            return
        of.finished(finish if finish in FINISHES or finish == "abort" else OTHER).inc()
        if finish in ("abort", "error"):
            return
        of.whole.add(now - self._began, now)
        observed = {
            "e2e_request_latency_seconds": now - self._began,
            "request_prompt_tokens": prompt_tokens,
            "request_generation_tokens": completion_tokens,
            "request_params_max_tokens": self._max_tokens,
            "request_prefill_time_seconds": self._first - self._started if self._first and self._started else None,
            "request_decode_time_seconds": self._last - self._first if self._first and self._last else None,
        }
        for name, value in observed.items():
            if value is not None:
                of.observe[name](value)


def _as_json(verdicts: Counter[tuple[str, str, str]]) -> list[dict[str, Any]]:
    return [
        {"rule": rule, "direction": direction, "action": action, "count": count}
        for (rule, direction, action), count in verdicts.most_common()
    ]
