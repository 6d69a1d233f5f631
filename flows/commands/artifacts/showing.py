"""`gristmill store show`: an artifact in words and tables. Its manifest has everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape

from flows.records.figures import figures_of
from flows.records.settings import by_kind, chosen
from flows.tables import new_table
from storage.errors import harmless
from storage.manifest import Manifest
from storage.units import duration, size_of
from tasks.stage.display.pages import making_of

MANY = 12  # sources named: the rest is counted
ROWS = 40  # of a table
EXAMPLES = "Examples"  # of documents that were removed: `gristmill explain` shows them


def show_manifest(console: Console, location: str, manifest: Manifest) -> None:
    """Print when and by what an artifact was made, its inputs, settings, counts and files."""
    for line in _head(location, manifest):
        console.print(line, soft_wrap=True, highlight=False)
    inputs = {**manifest.origins, **manifest.uses}
    _rows(console, "Inputs", [(name, _place(where.location, where.part)) for name, where in inputs.items()])
    sources = [name.removeprefix("source:") for name in manifest.payload.inputs if name.startswith("source:")]
    if sources:
        more = f" and {len(sources) - MANY} more" if len(sources) > MANY else ""
        console.print(f"\nFrom outside the store: {', '.join(sources[:MANY])}{more}", soft_wrap=True, highlight=False)
    _rows(console, "Settings that differ from the defaults", [*chosen(manifest)])
    _rows(console, "Counts", [(name, _number(value)) for name, value in figures_of(manifest).items()])
    for title, rows in manifest.counts.get("tables", {}).items():
        if title != EXAMPLES:
            _table(console, title, rows)
    kinds = new_table("files", "kind", "size", right=["files", "size"], title="Files")
    for kind, (count, size) in sorted(by_kind(manifest).items(), key=lambda item: -item[1][1]):
        kinds.add_row(f"{count:,}", kind, size_of(size))
    console.print()
    console.print(kinds)


def _head(location: str, manifest: Manifest) -> Iterator[str]:
    how = f"{escape(manifest.adopted)}" if manifest.adopted else f"made in {making_of(manifest)}"
    yield f"[bold]{location}[/] {size_of(manifest.size)}, {how}, {manifest.created[:19].replace('T', ' ')} UTC"
    if "summary" in manifest.counts:
        yield escape(harmless(str(manifest.counts["summary"])))
    facts = manifest.facts
    spent = f"{duration(facts['cpu_seconds'])} of CPU" if "cpu_seconds" in facts else ""
    memory = f"{size_of(facts['peak_memory_bytes'])} of memory" if "peak_memory_bytes" in facts else ""
    making = [f"version {manifest.payload.version} of the stage", *filter(None, (spent, memory))]
    yield f"[dim]{', '.join(making)}[/]"
    versions = dict(manifest.environment)
    machine = [f"{name} {versions.pop(name)}" for name in ("python", "commit", "changes", "cpu") if name in versions]
    first = list(versions.items())[:6]
    if machine:
        yield f"[dim]{escape(', '.join(machine))}[/]"
    if first:
        more = f" and {len(versions) - len(first)} more" if len(versions) > len(first) else ""
        yield f"[dim]{escape(', '.join(f'{name} {version}' for name, version in first))}{more}: --json has all[/]"


def _place(location: str, part: str) -> str:
    stage, _, key = location.partition("/")
    return f"{stage}/{key[:12]}" + (f" ({part}/)" if part else "")


def _rows(console: Console, title: str, rows: list[tuple[str, str]]) -> None:
    if not rows:
        return
    table = new_table("", "", show_header=False, title=title)
    for name, value in rows:
        table.add_row(escape(name), escape(harmless(value)))
    console.print()
    console.print(table)


def _table(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """A table of the stage's report, or its beginning."""
    if not rows:
        return
    numbers = [name for name in rows[0] if all(isinstance(row.get(name), int | float) for row in rows)]
    table = new_table(*rows[0], right=numbers, title=title)
    for row in rows[:ROWS]:
        table.add_row(*(escape(harmless(_cell(row.get(name)))) for name in rows[0]))
    console.print()
    console.print(table)
    if len(rows) > ROWS:
        console.print(f"[dim]{len(rows) - ROWS:,} more rows: --json has all[/]")


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, bool) or not isinstance(value, int | float) else _number(value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.5g}"
