"""Observers that show a run at a terminal and in the Prefect UI.

At a terminal the current stage has one live line: how far, how fast, how much longer. Elsewhere it prints a line every
ten seconds. In Prefect, a long stage has a progress artifact, updated at most every two seconds, and training has a
page with its curve, updated at most every half minute.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

import httpx
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from flows.pages.log import drop_closed_streams
from storage.artifact import Artifact
from storage.units import duration, size_of
from tasks.stage.display.pages import in_task, prefect_key
from tasks.stage.display.progress import Observer, Progress
from tasks.stage.history import FIRST_RUN, NEVER_MADE

SLOW = 0.1  # units a second: below, show the time of one unit
LINE_SECONDS = 10.0
LIVE_SECONDS = 0.25
LOG_SECONDS = 60.0
PREFECT_SECONDS = 2.0
PAGE_SECONDS = 30.0
AWAY_SECONDS = 60.0  # before the next try of a server that did not answer
NAME = 18  # characters of the longest stage name, with the indent of a part


@dataclass
class Pace:
    """The speed of one kind of work, to estimate the time left. It counts from the first finished step: before it come
    the start of processes, imports and compilation, or the steps before a resume."""

    first: float = 0.0  # progress at the first report
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)
    since: tuple[float, float] | None = None  # time and progress of the first finished step

    def __post_init__(self) -> None:
        self.started = self.clock()
        self.heard(self.first)

    def heard(self, done: float) -> None:
        """Note a progress report."""
        if self.since is None and done:
            self.since = self.clock(), done

    def describe(self, progress: Progress) -> str:
        """`120/800 steps · 4.2 steps/s · 2 min left · loss 3.9`."""
        began, done = self.since or (self.started, progress.done)
        seconds, worked = self.clock() - began, progress.done - done
        of_total = f"/{progress.total:,.0f}" if progress.total else ""
        parts = [f"{progress.done:,.0f}{of_total} {progress.unit}"]
        if seconds > 1 and worked > 0:
            rate = worked / seconds
            slow = f"{duration(1 / rate)} for each of the {progress.unit}"
            parts.append(f"{rate:,.1f} {progress.unit}/s" if rate >= SLOW else slow)
            if progress.total:
                parts.append(f"{duration((progress.total - progress.done) / rate)} left")
        return " · ".join([*parts, *([progress.note] if progress.note else [])])


def _percent(progress: Progress) -> float:
    return min(100.0, 100.0 * progress.done / progress.total) if progress.total else 0.0


class PrefectObserver(Observer):
    """Progress artifacts for long stages, a page for those that have one, and Prefect's log for the rest."""

    def __init__(self) -> None:
        self.artifacts: dict[str, UUID] = {}  # progress artifacts of unfinished stages
        self.latest: dict[str, Progress] = {}
        self.pages: dict[str, tuple[UUID | None, float]] = {}  # and the time of their last update
        self.shown = self.logged = time.monotonic()
        self.paces: dict[tuple[str, str, float], Pace] = {}

    def started(self, stage: str, why: str) -> None:
        """Log that the stage must be made, and why."""
        self._log(stage, f"to be made ({why})")

    def noted(self, stage: str, message: str) -> None:
        """See the base."""
        self._log(stage, message)

    def warned(self, stage: str, message: str) -> None:
        """See the base."""
        self._log(stage, message, logging.WARNING)

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float) -> None:
        """See the base."""
        size = f", {size_of(artifact.manifest.size)}" if artifact.manifest else ""
        how = "from the store" if cached else f"made in {duration(seconds)}"
        self._log(stage, f"{how}{size}: {artifact.location}")
        self._complete(stage, how)

    def gathered(self, stage: str, *, made: int, cached: int, seconds: float) -> None:
        """See the base."""
        how = f"{made} made in {duration(seconds)}, {cached} from the store"
        self._log(stage, how)
        self._complete(stage, how)

    def failed(self, error: str) -> None:
        """Write into open progress artifacts where they stopped, and why."""
        for stage, made in self.artifacts.items():
            reached = self.latest[stage]
            of_total = f"Stopped at {reached.done:,.0f} of {reached.total:,.0f} {reached.unit}"
            self._update(made, _percent(reached), f"{of_total}: {error}")
        self.artifacts.clear()

    def _complete(self, stage: str, how: str) -> None:
        if made := self.artifacts.pop(stage, None):
            self._update(made, 100.0, f"{how[0].upper()}{how[1:]}")

    def _update(self, made: UUID, percent: float, description: str) -> None:
        from prefect.artifacts import update_progress_artifact

        with suppress(httpx.HTTPError):
            update_progress_artifact(made, percent, description)

    def _log(self, stage: str, message: str, level: int = logging.INFO) -> None:
        """Log in Prefect if it is imported: a run that takes all from the store avoids these seconds."""
        self.logged = time.monotonic()
        drop_closed_streams()
        if "prefect" in sys.modules:
            from prefect import get_run_logger
            from prefect.exceptions import MissingContextError

            with suppress(MissingContextError):
                get_run_logger().log(level, "%s: %s", stage, message)

    def _pace(self, progress: Progress) -> Pace:
        pace = self.paces.setdefault((progress.stage, progress.unit, progress.total), Pace(progress.done))
        pace.heard(progress.done)
        return pace

    def progressed(self, progress: Progress) -> None:
        """Log a line every `LOG_SECONDS`, and update the artifact at most every `PREFECT_SECONDS`. Short stages get no
        artifact."""
        pace = self._pace(progress)
        self.latest[progress.stage] = progress
        if time.monotonic() - self.logged > LOG_SECONDS:
            self._log(progress.stage, pace.describe(progress))
        if time.monotonic() - self.shown < PREFECT_SECONDS or not progress.total:
            return
        if not in_task():
            return
        try:
            self._show(progress, pace.describe(progress))
            self.shown = time.monotonic()
        except httpx.HTTPError:  # the work goes on without the server
            self.shown = time.monotonic() + AWAY_SECONDS

    def _show(self, progress: Progress, description: str) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        percent = _percent(progress)
        made = self.artifacts.get(progress.stage)
        if made is None:
            key = prefect_key(f"progress-{progress.stage}")
            made = create_progress_artifact(percent, key=key, description=description)  # type: ignore[assignment]
            assert isinstance(made, UUID)
            self.artifacts[progress.stage] = made
        else:
            update_progress_artifact(made, percent, description)

    def paged(self, stage: str, name: str, write: Callable[[], str], *, last: bool) -> None:
        """One artifact a page and run, `STAGE-NAME`, created at once. It then changes in place, as a version for each
        change would fill the database: at most every `PAGE_SECONDS`, and for the last time."""
        key, now = prefect_key(f"{stage}-{name}"), time.monotonic()
        made, shown = self.pages.get(key, (None, -math.inf))
        if not in_task() or (now - shown < PAGE_SECONDS and not last):
            return
        try:
            self.pages[key] = self._write_page(key, stage, write(), made), now
        except httpx.HTTPError:
            self.pages[key] = made, time.monotonic() + AWAY_SECONDS

    def _write_page(self, key: str, stage: str, text: str, made: UUID | None) -> UUID:
        from prefect.artifacts import create_markdown_artifact
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.actions import ArtifactUpdate

        if made is None:
            made = create_markdown_artifact(markdown=text, key=key, description=stage)  # type: ignore[assignment]
            assert isinstance(made, UUID)
        else:
            with get_client(sync_client=True) as client:
                client.update_artifact(made, ArtifactUpdate(data=text))
        return made


class TerminalObserver(PrefectObserver):
    """A line for each finished stage, a live line for the current one."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self.live: Live | None = None
        self.printed = 0.0
        self.working: list[str] = []  # the current stage last, after those that wait for it
        self.named: set[str] = set()  # of these, those with a line above their parts

    def started(self, stage: str, why: str) -> None:
        """Print why the stage must be made, unless it never was."""
        super().started(stage, why)
        self._head()
        self.working.append(stage)
        if why != NEVER_MADE and not why.startswith(FIRST_RUN):
            self._print(stage, f"[dim]{escape(why)}[/]")
        if self.console.is_terminal and self.live is None:
            self.live = Live(console=self.console, transient=True, auto_refresh=False)
            self.live.start()

    def noted(self, stage: str, message: str) -> None:
        """Print a line."""
        super().noted(stage, message)
        self._print(stage, escape(message))

    def warned(self, stage: str, message: str) -> None:
        """Print a yellow line."""
        super().warned(stage, message)
        self._print(stage, f"[yellow]{escape(message)}[/]")

    def _head(self) -> None:
        """Print a line for each stage that waits for one of its parts, above the part's line."""
        for stage in self.working:
            if stage not in self.named:
                self._print(stage, "")

    def _print(self, stage: str, text: str) -> None:
        depth = self.working.index(stage) if stage in self.working else len(self.working)
        self.named.add(stage)
        name = f"{'  ' * depth}{stage}"
        self.console.print(f"  [bold]{name:<{NAME}}[/] {text}".rstrip(), soft_wrap=True)

    def progressed(self, progress: Progress) -> None:
        """Show how far, how fast, how much longer."""
        super().progressed(progress)
        pace = self._pace(progress)
        now = time.monotonic()
        if now - self.printed < (LIVE_SECONDS if self.live else LINE_SECONDS):
            return
        self.printed = now
        if self.live:
            name = f"{'  ' * max(0, len(self.working) - 1)}{progress.stage}"
            self.live.update(Text(f"  {name:<{NAME}} {pace.describe(progress)}"), refresh=True)
        elif now - pace.started > 1:
            self._print(progress.stage, escape(pace.describe(progress)))

    def finished(self, stage: str, artifact: Artifact, *, cached: bool, seconds: float) -> None:
        """Print one line: made or cached, where, how large."""
        super().finished(stage, artifact, cached=cached, seconds=seconds)
        if not cached and self.working[:1] == [stage]:
            self.close()
        manifest = artifact.manifest
        size = f"{size_of(manifest.size):>9}" if manifest else ""
        how = "[cyan]cached[/]" if cached else f"[green]made in {duration(seconds)}[/]"
        if cached:
            self._head()
        adopted = f", {escape(manifest.adopted)}" if manifest and manifest.adopted else ""
        made, _, key = artifact.location.partition("/")
        self._print(stage, f"{size}  {how} [dim]{made}/{key[:8]}{adopted}[/]")
        if not cached:
            self.working.remove(stage)
        self.named.discard(stage)

    def gathered(self, stage: str, *, made: int, cached: int, seconds: float) -> None:
        """Print one line for all of them."""
        super().gathered(stage, made=made, cached=cached, seconds=seconds)
        parts = [f"[green]{made} made in {duration(seconds)}[/]"] if made else []
        parts += [f"[cyan]{cached} cached[/]"] if cached else []
        self._head()
        self._print(stage, f"{'':>9}  {', '.join(parts)}")
        if made:
            self.working.remove(stage)
        self.named.discard(stage)

    def close(self) -> None:
        """Remove the live line."""
        if self.live:
            self.live.stop()
            self.live = None
