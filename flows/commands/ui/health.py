"""The health of a Prefect server: errors of its services, and whether its scheduler plans runs.

A server's services fail only in its log, again and again, while its pages look healthy. So the errors of that log are
shown, each once, and the scheduler is judged by its work: an active schedule must have a planned run.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import IO, Any

import httpx
from rich.markup import escape

from flows.server import credentials

LOOK_SECONDS = 10.0
PATIENCE = 9  # consecutive looks without a planned run: the scheduler's rounds take up to a minute
ERROR = re.compile(rb"^\S+ \| (?:ERROR|CRITICAL) *\| (.*)|^((?:\w+\.)*\w*(?:Error|Exception)\b.*)", re.MULTILINE)


class Health:
    """News of the server at `address`, which logs into `said`."""

    def __init__(self, address: str, said: IO[bytes], environment: Mapping[str, str]) -> None:
        self._said, self._read, self._shown = said, 0, set[str]()
        self._client = httpx.Client(base_url=f"{address}/api", timeout=10, auth=credentials(environment))
        self._looked, self._without, self._line = 0.0, 0, ""

    def news(self, workers: int) -> Iterator[str]:
        """New lines, as console markup: errors, and the health if it has changed."""
        yield from self._errors()
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            scheduler = self._scheduler()
        except httpx.HTTPError as error:
            scheduler = f"the server does not answer ({escape(type(error).__name__)})"
        line = f"Health: {workers} worker{'s' if workers > 1 else ''}, {scheduler}"
        if scheduler and line != self._line:
            self._line = line
            yield f"[dim]{line}[/]"

    def _errors(self) -> Iterator[str]:
        """New errors of the server's services. Reads by offset, as the server shares the file's position."""
        text = os.pread(self._said.fileno(), 1_000_000, self._read)
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for match in ERROR.finditer(whole):
            line = (match[1] or match[2]).decode(errors="replace").strip()
            if line not in self._shown:
                self._shown.add(line)
                yield f"[red]The server says:[/] {escape(line)}"

    def _scheduler(self) -> str:
        """The scheduler's health, or empty if it is not known yet."""
        on = [
            deployment["id"]
            for deployment in self._list("/deployments/filter", {})
            if not deployment["paused"] and any(schedule["active"] for schedule in deployment["schedules"])
        ]
        if not on:
            self._without = 0
            return "no schedule is active"
        without = sum(not self._has_planned(deployment) for deployment in on)
        self._without = self._without + 1 if without else 0
        if self._without >= PATIENCE:
            return f"[red]the scheduler plans no runs for {without} of {len(on)} deployments with an active schedule[/]"
        return "" if without else f"the scheduler works: runs of {len(on)} deployments are planned"

    def _has_planned(self, deployment: str) -> bool:
        planned = {
            "state": {"type": {"any_": ["SCHEDULED"]}},
            "expected_start_time": {"after_": datetime.now(UTC).isoformat()},
        }
        body = {"deployments": {"id": {"any_": [deployment]}}, "flow_runs": planned, "limit": 1}
        return bool(self._list("/flow_runs/filter", body))

    def _list(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        matches: list[dict[str, Any]] = self._client.post(path, json=body).raise_for_status().json()
        return matches
