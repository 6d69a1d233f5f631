"""`gristmill ablate`: runs a matrix at a terminal, and prints which differences are real."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.markup import escape

from flows.commands.run import ended_in_order, in_prefect, in_process
from flows.deployed.approval import AtTerminal
from flows.matrix.arms import Matrix, matrix_of
from flows.matrix.halving import announced, check_halving
from flows.matrix.lanes import jobs_of
from flows.matrix.plan import PlannedMatrix, plan_matrix
from flows.options import at_store
from flows.pages.progress import TerminalObserver
from flows.records.recorder import Asked
from flows.session import check_stages, recorded, session_of
from flows.stop import stoppable
from flows.tables import new_table
from profiles.schema import Profile
from profiles.stage_names import TRAINED
from storage.units import duration
from tasks.ablate.report import SEEDS, rows_of_noise
from tasks.stage.session import Session, Step


class AskedRuns(Protocol):
    """What a command over many runs was asked for."""

    @property
    def profile(self) -> str:
        """The profile, as it was named."""

    @property
    def overrides(self) -> Sequence[str]:
        """Its overrides."""


@dataclass(frozen=True)
class AskedMatrix:
    """A matrix, as in its command."""

    profile: str
    overrides: list[str]
    vary: list[str]
    arm: list[str]
    seeds: int
    each: bool
    link: str | None
    jobs: int | None = None
    halve: bool = False

    @property
    def matrix(self) -> Matrix:
        """Its runs. Raises ConfigError."""
        return matrix_of(
            self.profile, self.overrides, self.vary, self.seeds, arm=self.arm, each=self.each, link=self.link
        )


def run_ablation(console: Console, asked: AskedMatrix, yes: bool = False) -> None:
    """Run a matrix, with progress and a table. Raises what its runs raise."""

    def prepared() -> Prepared:
        made = asked.matrix
        if asked.halve:
            check_halving(made)
        return prepared_matrix(made.reference, made)

    def here(session: Session) -> None:
        from flows.matrix.ablation import compared

        matrix = asked.matrix
        compared(matrix, session, jobs_of(matrix.reference, asked.jobs), halve=asked.halve)

    run_all(console, asked, prepared, Work(lambda: _flow(asked), here), show_effects, "ablate", yes=yes)


class Prepared(NamedTuple):
    """What a command will run: the profile that it is about, up to which stage, those that are checked before, and its
    size in words."""

    profile: Profile
    until: str
    checked: Sequence[Profile]
    size: str


def prepared_matrix(profile: Profile, matrix: Matrix) -> Prepared:
    """A matrix of a profile."""
    return Prepared(profile, matrix.link, [first.profile for first, *_ in matrix.members], _size(matrix))


class Work(NamedTuple):
    """What a command does: as a flow that Prefect's server shows, or in a session of this process alone."""

    flow: Callable[[], object]
    here: Callable[[Session], object]


def run_all(
    console: Console,
    asked: AskedRuns,
    prepared: Callable[[], Prepared],
    work: Work,
    show: Callable[[Console, Mapping[str, Step]], None],
    stage: str,
    *,
    yes: bool,
) -> None:
    """Do work over many profiles, which ends with a `stage`, and show its steps. Raises what `prepared` and the runs
    raise."""
    started = time.monotonic()
    observer = TerminalObserver(console)
    with stoppable() as stop, ended_in_order(stop, observer):
        profile, until, checked, size = prepared()
        approve = None if yes else AtTerminal(profile, observer)
        session = replace(session_of(profile, until), observer=observer, approve=approve)
        where = f"store {profile.runtime.store}"
        console.print(f"[bold]{profile.name}[/] [dim]{size}, {where}[/]", soft_wrap=True, highlight=False)
        run_asked = Asked(asked.profile, list(asked.overrides), until)
        with recorded(profile, session, run_asked) as run, ended_in_order(stop, observer):
            for one in checked:
                check_stages(one, one.names_to(until))
            if os.environ.get("PREFECT_API_URL"):
                in_prefect(run, stop, work.flow)
            else:
                in_process(run, work.here)
    show(console, run.session.steps)
    console.print(f"\nDone in {duration(time.monotonic() - started)}.")
    where = f"{profile.name}/{stage}{at_store(profile.runtime.store)}"
    how = "As a page: gristmill report"
    console.print(f"{how} {where}", soft_wrap=True, highlight=False)


def show_matrix_plan(console: Console, asked: AskedMatrix) -> None:
    """Print what the runs of a matrix share, what is to be made, and how many seeds a difference needs."""
    matrix = asked.matrix
    halving = announced(matrix) if asked.halve else ""
    planned = plan_matrix(matrix)
    console.print(f"[bold]{matrix.reference.name}[/] [dim]{_size(matrix)}[/]", highlight=False)
    show_needed(console, planned)
    if halving:
        console.print(halving, soft_wrap=True, highlight=False)
    if planned.noise is None:
        console.print(
            "The noise of seeds isn't known yet. The reference's runs come first and measure it, or: "
            f"gristmill ablate {asked.profile}",
            soft_wrap=True,
            highlight=False,
        )
    else:
        console.print()
        show_rows(console, SEEDS, rows_of_noise(planned.noise, planned.reference, len(matrix.arms)))


def show_needed(console: Console, planned: PlannedMatrix) -> None:
    """Print a row for each stage of a planned matrix, and what its runs share."""
    table = new_table(
        "stage", "artifacts", "stored", "for runs", "time", right=["artifacts", "stored", "for runs", "time"]
    )
    for stage in planned.stages:
        needed = planned.of(stage)
        made = [one.seconds for one in needed if not one.stored]
        known = [seconds for seconds in made if seconds is not None]
        time = "" if not made else "?" if len(known) < len(made) else f"~{duration(sum(known))}"
        stored = sum(one.stored for one in needed)
        table.add_row(stage, f"{len(needed)}", f"{stored}", f"{sum(one.runs for one in needed)}", time)
    console.print(table)
    console.print(f"\n{_sharing(planned)}", soft_wrap=True, highlight=False)


def _size(matrix: Matrix) -> str:
    seeds = len(matrix.seeds)
    runs = len(matrix.arms) * seeds
    return f"{len(matrix.arms)} arms × {seeds} seed{'s' if seeds > 1 else ''}: {runs} runs up to {matrix.link}"


def _sharing(planned: PlannedMatrix) -> str:
    """How many artifacts are made, and how long that takes with and without sharing."""
    missing = [one for one in planned.needed if not one.stored]
    if not missing:
        return "Nothing to make: all models are there, and may be measured already."
    known = [one for one in missing if one.seconds is not None]
    unknown = sorted({one.stage for one in missing if one.seconds is None})
    text = f"{len(missing)} of {len(planned.needed)} artifacts to make"
    if known:
        together, apart = (sum(one.seconds or 0 for one in known), sum(one.runs * (one.seconds or 0) for one in known))
        text += f": about {duration(together)} on one device, {duration(apart)} if nothing were shared"
    text += f", without {', '.join(unknown)}, whose time is unknown" if unknown else ""
    text += "."
    if planned.price is not None:
        hours = sum(one.seconds or 0 for one in known if one.stage in TRAINED) / 3600
        text += f" Training costs {hours * planned.price:,.2f} USD at the price that `gristmill plan` assumes."
    return f"{text} Then each model is measured."


def _flow(asked: AskedMatrix) -> None:
    from flows.matrix.ablation import ablation

    ablation(**asdict(asked))


def counts_of(steps: Mapping[str, Step], stage: str) -> Mapping[str, Any]:
    """The counts of the artifact that a run took or made of a stage."""
    manifest = steps[stage].artifact.manifest
    assert manifest is not None
    return manifest.counts


def show_effects(console: Console, steps: Mapping[str, Step]) -> None:
    """Print the tables of an ablation, and which arm is best."""
    counts = counts_of(steps, "ablate")
    tables = dict(counts["tables"])
    for measure, rows in groupby(tables.pop("Effects"), lambda row: str(row["measure"])):
        console.print()
        show_rows(console, measure, [{head: cell for head, cell in row.items() if head != "measure"} for row in rows])
    for title, rows in tables.items():
        console.print()
        show_rows(console, title, rows)
    console.print(f"\n[bold]Result:[/] {escape(str(counts['summary']))}.", soft_wrap=True, highlight=False)


def show_rows(console: Console, title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print the rows of a table of an artifact."""
    table = new_table(
        *rows[0],
        right=[
            "value",
            "difference (95 %)",
            "natural",
            "proposed",
            "proposed (95 %)",
            "weight",
            "difference",
            "Spearman",
            "RMSE",
            "p, corrected",
            "seeds of each arm",
            "after steps",
            "documents",
        ],
        title=title,
    )
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row.values()))
    console.print(table)
