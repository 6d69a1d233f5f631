"""`gristmill compare`: tests which differences between evaluations are real. Prints tables, Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from flows.commands.store import open_store
from flows.tables import Terminal, new_table
from storage import refs
from storage.errors import harmless
from storage.store import Store
from tasks.significance.answered import Answered
from tasks.significance.compare import EQUAL, Comparison, Row, as_json, chain_pairs, compare, pair_up
from tasks.significance.texts import other_text
from tasks.stage.display.pages import markdown_table

_BITS = "(less is better, not tested: one number each)"


def show_comparison(
    store: str, first: str, second: str | None, tasks: Sequence[str], metric: str | None, json_wanted: bool
) -> None:
    """Compare two evaluations, or the models of one, each named by ref, location or `REF:MODEL`.

    Raises StoreError, ConfigError, DamagedArtifact.
    """
    opened = open_store(store)
    one, model = _read(opened, first)
    if second is None:
        pairs = chain_pairs(one, model)
    else:
        other, its = _read(opened, second)
        pairs = pair_up(one, model, other, its)
    comparison = compare(pairs, tasks, metric)
    if json_wanted:
        print(json.dumps(as_json(comparison), indent=1))
    elif (console := Terminal()).is_terminal:
        _show(console, comparison)
    else:
        print(harmless(text_of(comparison)))


def text_of(comparison: Comparison) -> str:
    """The comparison as Markdown."""
    return "\n\n".join(part if isinstance(part, str) else _markdown(part) for part in _parts(comparison))


def _parts(comparison: Comparison) -> Iterator[str | list[dict[str, str]]]:
    """A sentence and the rows of a table for each pair, then which differences are real and what was not compared."""
    for first, second in comparison.pairs:
        rows = [row for row in comparison.rows if (row.first, row.second) == (first, second)]
        yield f"A = {first.name}, B = {second.name}"
        bits = [one.evaluation.models[one.model].bits_per_byte for one in (first, second)]
        if None not in bits:
            other = other_text(first.evaluation, first.model, second.evaluation, second.model)
            how = "(of different texts: they can't be compared)" if other else _BITS
            yield f"bits per byte: {bits[0]:.4f} and {bits[1]:.4f} {how}"
        if rows:
            yield [_cells(row) for row in rows]
    yield _sentence(comparison)
    if comparison.left:
        whose = [" and ".join(dict.fromkeys((one.first.model, one.second.model))) for one in comparison.left]
        why = [f"- {one.task}, {who}: {one.why}" for one, who in zip(comparison.left, whose, strict=True)]
        yield "Not compared:\n\n" + "\n".join(why)


def _show(console: Console, comparison: Comparison) -> None:
    """Print the comparison at a terminal."""
    for part in _parts(comparison):
        if isinstance(part, str):
            console.print(escape(harmless(part)), soft_wrap=True, highlight=False)
            continue
        table = new_table(*part[0], right=("A", "B", "p, corrected", "would be seen"))
        for row in part:
            table.add_row(*(escape(harmless(cell)) for cell in row.values()))
        console.print(table)
        console.print()


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    widths = {head: max(len(head), *(len(row[head]) for row in rows)) for head in rows[0]}
    return markdown_table(
        [{head.ljust(widths[head]): row[head].ljust(widths[head]) for head in widths} for row in rows]
    )


def _cells(row: Row) -> dict[str, str]:
    found = row.found
    questions = f"{found.items:,}"
    questions += f" in {found.clusters:,} clusters" if found.clusters else ""
    only = [f"{count:,} only {who} has" for who, count in (("A", row.only_first), ("B", row.only_second)) if count]
    questions += f" (not {' and '.join(only)})" if only else ""
    interval = "" if found.low is None or found.high is None else f" ({found.low:+.3g} to {found.high:+.3g})"
    return {
        "task": row.task,
        "metric": row.metric if row.higher_is_better else f"{row.metric}, less is better",
        "A": f"{found.first:.4g}",
        "B": f"{found.second:.4g}",
        "B - A (95 %)": f"{found.difference:+.4g}{interval}",
        "p, corrected": f"{row.p:.2g}",
        "verdict": row.verdict,
        "would be seen": "" if row.verdict != EQUAL else _seen(row),
        "questions": questions,
    }


def _seen(row: Row) -> str:
    if row.detectable is not None:
        return f"{row.detectable:.2g}"
    return "alike on every question" if not row.found.differing and not row.found.binary else "too few questions"


def _sentence(comparison: Comparison) -> str:
    number = len(comparison.rows)
    real = [row for row in comparison.rows if row.verdict != EQUAL]
    if not number:
        return "No task could be compared."
    if not real:
        return f"No real difference in {number} {'comparison' if number == 1 else 'comparisons'}."
    names = [f"{row.task} ({row.verdict}{_of(comparison, row)})" for row in real]
    return f"{len(real)} of {number} differences are real: {', '.join(names)}."


def _of(comparison: Comparison, row: Row) -> str:
    return f": {row.first.model} and {row.second.model}" if len(comparison.pairs) > 1 else ""


def _read(store: Store, name: str) -> tuple[Answered, str | None]:
    """The evaluation of `REF` or `REF:MODEL`, and the model."""
    ref, _, model = name.partition(":")
    return Answered.of(store.get(refs.resolve(store, ref)), ref), model or None
