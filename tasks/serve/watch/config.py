"""The sections of serve.yaml on watching: the audit log, logs, health, metrics and traces."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.stage.config import StageConfig


class AuditConfig(StageConfig):
    """A line for each request, on this machine only."""

    enabled: bool = Field(True, description="keep an audit log in the state folder")
    required: bool = Field(
        False,
        description="refuse new requests with 503 while the log can't be written (false: answer, and count lost lines)",
    )
    text: bool = Field(False, description="keep prompts and answers too, in a folder that only this user can open")
    client: Literal["none", "hashed"] = Field(
        "hashed", description="the client's address: left out, or as a keyed hash that tells equal addresses"
    )
    file_mb: int = Field(64, ge=1, le=100_000, description="a file of this size is closed and the next one begun")
    days: int = Field(90, ge=1, le=36_500, description="delete files after this many days")
    files: int = Field(1000, ge=2, le=100_000, description="delete the oldest files beyond this number")

    @model_validator(mode="after")
    def _required_is_enabled(self) -> Self:
        if not self.enabled and (self.required or self.text):
            raise ValueError("audit.required and audit.text need audit.enabled")
        return self


class LogsConfig(StageConfig):
    """The server's own log on stderr. It never holds prompts, answers, keys or headers."""

    format: Literal["text", "json"] = Field("text", description="lines for people, or a JSON object a line")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="leave out less important lines")


class HealthConfig(StageConfig):
    """The check behind /ready: the engine must answer one token."""

    within: float = Field(15.0, gt=0, le=600, description="seconds that the engine has for the token")
    every: float = Field(5.0, ge=0.1, le=600, description="seconds between checks that nobody asked for")


class MetricsConfig(StageConfig):
    """Bounds of /metrics and of the percentiles."""

    keys: int = Field(100, ge=1, le=10_000, description="keys with series of their own, later ones count as `other`")
    window: int = Field(300, ge=60, le=3600, description="seconds that percentiles and rates of the status cover")


class TracesConfig(StageConfig):
    """OpenTelemetry traces, without content. Nothing is sent unless an endpoint is named."""

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s/?#]+[^\s?#]*$",
        description="OTLP collector for traces, such as http://127.0.0.1:4318/v1/traces (null: no traces). Needs "
        "`gristmill[otel]`",
    )
    share: float = Field(1.0, ge=0, le=1, description="share of requests traced, unless the caller's trace decides")


class WatchConfig(StageConfig):
    """Everything that watches the server."""

    audit: AuditConfig = Field(AuditConfig(), description="the audit log")
    logs: LogsConfig = Field(LogsConfig(), description="the server's log")
    health: HealthConfig = Field(HealthConfig(), description="when the server is ready")
    metrics: MetricsConfig = Field(MetricsConfig(), description="Prometheus metrics and percentiles")
    traces: TracesConfig = Field(TracesConfig(), description="OpenTelemetry traces")
