"""Watches the server: who asked when, how fast it answers, what the guards found, and whether the engine is alive.

config.py           the sections of serve.yaml
observed.py         the server reports each request here once, and the rest follows
metrics.py          Prometheus metrics, by vLLM's names
recent.py           percentiles of the last minutes
audit.py            the audit log
audit_reader.py     reads and filters it
logs.py             the server's log on stderr
health.py           whether an engine answers
traces.py           OpenTelemetry spans
"""

from tasks.serve.watch.config import WatchConfig
from tasks.serve.watch.health import Health, Readiness
from tasks.serve.watch.logs import Logs
from tasks.serve.watch.observed import Observed, Watch

__all__ = ["Health", "Logs", "Observed", "Readiness", "Watch", "WatchConfig"]
