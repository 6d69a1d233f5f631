"""`gristmill scaling`: runs a ladder at a terminal, and prints its law and what it predicts."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

from flows.commands.matrix.ablate import Prepared, Work, counts_of, prepared_matrix, run_all, show_needed
from flows.matrix.ladder import AskedLadder, ladder_of
from flows.matrix.lanes import jobs_of
from flows.matrix.plan import plan_matrix
from flows.tables import new_table
from tasks.stage.session import Session, Step


def run_ladder(console: Console, asked: AskedLadder, yes: bool = False) -> None:
    """Run a ladder, with progress and tables. Raises what its runs raise."""

    def prepared() -> Prepared:
        ladder = ladder_of(asked)
        return prepared_matrix(ladder.profile, ladder.matrix)

    def here(session: Session) -> None:
        from flows.matrix.scaling import fitted

        ladder = ladder_of(asked)
        fitted(ladder, session, jobs_of(ladder.profile, asked.jobs))

    run_all(console, asked, prepared, Work(lambda: _flow(asked), here), show_law, "scaling", yes=yes)


def show_ladder_plan(console: Console, asked: AskedLadder) -> None:
    """Print the trainings of a ladder, and what is to be made."""
    ladder = ladder_of(asked)
    table = new_table(
        "size",
        "parameters",
        "steps",
        "tokens",
        "a parameter",
        "FLOPs",
        right=["parameters", "steps", "tokens", "a parameter", "FLOPs"],
    )
    for rung in sorted(ladder.rungs, key=lambda rung: (rung.flops, rung.of.size, rung.rate)):
        rate = f", learning rate × {rung.rate:g}" if rung.rate != 1 else ""
        each = rung.tokens / rung.of.parameters
        table.add_row(
            f"{rung.of.name}{rate}",
            f"{rung.of.parameters:,}",
            f"{rung.steps:,}",
            f"{rung.tokens:,}",
            f"{each:.1f}",
            f"{rung.flops:.2e}",
        )
    console.print(table)
    steps, branched = ladder.steps
    console.print(f"\n{steps:,} steps, of which branches leave {branched:,} ({branched / steps:.0%}).", highlight=False)
    show_needed(console, plan_matrix(ladder.matrix))


def show_law(console: Console, steps: Mapping[str, Step]) -> None:
    """Print the tables of a ladder, and its law in a sentence."""
    counts = counts_of(steps, "scaling")
    for title, rows in counts["tables"].items():
        console.print()
        heads = list(dict.fromkeys(head for row in rows for head in row))
        table = new_table(*heads, right=heads[1:], title=title)
        for row in rows:
            table.add_row(*(escape(str(row.get(head, ""))) for head in heads))
        console.print(table)
    console.print(f"\n[bold]Result:[/] {escape(str(counts['summary']))}.", soft_wrap=True, highlight=False)


def _flow(asked: AskedLadder) -> None:
    from flows.matrix.scaling import law_of_ladder

    law_of_ladder(
        asked.profile,
        tuple(asked.budgets),
        tuple(asked.sizes),
        asked.seeds,
        asked.target,
        asked.overrides,
        asked.check_rate,
        asked.beyond,
        asked.jobs,
    )
