"""`gristmill ablate`: runs a matrix at a terminal, and prints which differences are real."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.markup import escape

from flows.commands.run import ended_in_order, in_prefect
from flows.deployed.approval import AtTerminal
from flows.matrix.arms import Matrix, matrix_of
from flows.options import at_store
from flows.pages.progress import TerminalObserver
from flows.records.recorder import Asked
from flows.session import check_stages, recorded, session_of
from flows.stop import stoppable
from flows.tables import new_table
from storage.artifact import Artifact
from storage.units import duration


@dataclass(frozen=True)
class AskedMatrix:
    """A matrix, as in its command."""

    profile: str
    overrides: list[str]
    vary: list[str]
    seeds: int
    each: bool
    link: str | None
    jobs: int | None = None

    @property
    def matrix(self) -> Matrix:
        """Its runs. Raises ConfigError."""
        return matrix_of(self.profile, self.overrides, self.vary, self.seeds, each=self.each, link=self.link)


def run_ablation(console: Console, asked: AskedMatrix, yes: bool = False) -> None:
    """Run a matrix, with progress and a table. Raises what its runs raise."""
    started = time.monotonic()
    observer = TerminalObserver(console)
    with stoppable() as stop, ended_in_order(stop, observer):
        matrix = asked.matrix
        profile = matrix.reference
        approve = None if yes else AtTerminal(profile, observer)
        session = replace(session_of(profile, matrix.link), observer=observer, approve=approve)
        runs = len(matrix.arms) * len(matrix.seeds)
        what = f"{len(matrix.arms)} arms × {len(matrix.seeds)} seeds: {runs} runs up to {matrix.link}"
        console.print(f"[bold]{profile.name}[/] [dim]{what}, store {profile.runtime.store}[/]", highlight=False)
        run_asked = Asked(asked.profile, asked.overrides, matrix.link)
        with recorded(profile, session, run_asked) as run, ended_in_order(stop, observer):
            for first, *_ in matrix.members:
                check_stages(first.profile, first.profile.names_to(matrix.link))
            in_prefect(run, console, stop, lambda: _flow(asked))
    show_effects(console, run.session.steps["ablate"].artifact)
    console.print(f"\nDone in {duration(time.monotonic() - started)}.")
    where = f"{profile.name}/ablate{at_store(profile.runtime.store)}"
    console.print(f"All numbers: gristmill store show {where}", soft_wrap=True, highlight=False)


def _flow(asked: AskedMatrix) -> None:
    from flows.matrix.ablation import ablation

    ablation(asked.profile, asked.vary, asked.seeds, asked.overrides, asked.each, asked.link, asked.jobs)


def show_effects(console: Console, artifact: Artifact) -> None:
    """Print the tables of an ablation, and which arm is best."""
    assert artifact.manifest is not None
    counts = artifact.manifest.counts
    for title, rows in counts["tables"].items():
        console.print()
        _show(console, title, rows)
    summary = str(counts["summary"])
    console.print(f"\n{escape(summary[0].upper() + summary[1:])}.", soft_wrap=True, highlight=False)


def _show(console: Console, title: str, rows: Sequence[Mapping[str, str]]) -> None:
    table = new_table(*rows[0], right=["value", "difference (95 %)", "p, corrected", "seeds of each arm"], title=title)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row.values()))
    console.print(table)
