"""`gristmill filter`: the rules of a profile, and the documents near a rule's threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from flows.options import Overrides, ProfileName, StoreUrl, settings
from flows.tables import Terminal, new_table
from storage.errors import ConfigError, harmless

if TYPE_CHECKING:
    from profiles.schema import Profile
    from tasks.filter.config import FilterConfig
    from tasks.filter.inspect.threshold import Inspection, Nearby

app = typer.Typer(no_args_is_help=True)
console = Terminal()
PREVIEW = 600  # characters of a document at the terminal

Row = Mapping[str, str]


@app.command()
def rules(profile: ProfileName = "tiny", overrides: Overrides = None, store: StoreUrl = None) -> None:
    """List every rule of a profile with its threshold, in the order of their use."""
    from tasks.filter.families import rules as rules_of
    from tasks.filter.form.languages.thresholds import switched_off

    _, config = _loaded(profile, overrides, store)
    off = switched_off(config.languages)
    table = new_table("rule", "threshold", right=["threshold"])
    for rule in rules_of(config):
        table.add_row(rule.name, "" if rule.threshold is None else f"{rule.threshold:g}")
        for language in off.get(rule.name, ()):
            table.add_row(f"{rule.name}.{language}", "off")
    console.print(table)


@app.command()
def fineweb2(
    files: Annotated[
        list[str], typer.Argument(metavar="CODE=FILE", help="a language and its file, such as de=configs/deu_Latn.yml")
    ],
) -> None:
    """Print a profile section with FineWeb-2's thresholds and stop words for languages, from its config files.

    gristmill filter fineweb2 de=deu_Latn.yml pt=por_Latn.yml > part.yaml
    """
    import yaml

    from tasks.filter.form.languages.fineweb2 import read_language_file, section

    pairs = [file.partition("=") for file in files]
    for code, separator, path in pairs:
        if not (code and separator and path):
            raise ConfigError(
                f"{code}{separator}{path} is not a language and a file.", "Write CODE=FILE: de=deu_Latn.yml."
            )
    languages = section({code: read_language_file(Path(path)) for code, _, path in pairs})
    print(yaml.safe_dump({"filter": languages}, sort_keys=False, allow_unicode=True), end="")


@app.command()
def look(
    rule: Annotated[str, typer.Argument(help="a rule, such as gopher_quality.min_words")],
    profile: ProfileName = "tiny",
    threshold: Annotated[
        float | None, typer.Option(help="try this threshold instead, and show what it would change")
    ] = None,
    documents: Annotated[int, typer.Option(min=1, max=200, help="documents to show on each side")] = 3,
    source: Annotated[str, typer.Option(help="show only documents of this source")] = "",
    page: Annotated[Path | None, typer.Option(help="also write them in full to this HTML file")] = None,
    overrides: Overrides = None,
    store: StoreUrl = None,
) -> None:
    """Show the documents just above and just below a rule's threshold, before you set it.

    All other rules keep these documents. Personal data in them is replaced. The signals are those of the profile's
    newest filter artifact. Nothing is changed, and only personal data in the shown documents is measured.

        gristmill filter look gopher_quality.min_words tiny

        gristmill filter look gopher_quality.min_words tiny --threshold 40 --page words.html
    """
    from flows.session import session_of
    from tasks.filter.families import rules as rules_of
    from tasks.filter.inspect.page import page as page_of
    from tasks.filter.inspect.stored_signals import stored_signals
    from tasks.filter.inspect.threshold import inspect_rule, named_rule

    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"--threshold {threshold} is not a finite number.", "Give a finite number.")
    chosen, config = _loaded(profile, overrides, store)
    named_rule(rules_of(config), rule)  # report a misspelling before reading the store
    shards = stored_signals(session_of(chosen).store, chosen.name, config)
    looked = inspect_rule(config, rule, shards, threshold=threshold, count=documents, source=source)
    changes, spread = _changes(looked, threshold is not None), _spread(looked)
    if page is not None:
        page.write_text(page_of(looked, chosen.name, changes, spread), encoding="utf-8")
    bound = "" if looked.rule.threshold is None else f", threshold {looked.rule.threshold:g}"
    console.print(f"[bold]{looked.rule.name}[/]{bound}")
    _print_rows("Documents kept", changes)
    _print_rows("The signal", spread)
    if looked.unmeasured:
        console.print(f"{looked.unmeasured:,} documents could not be measured.")
    if looked.unasked:
        last = ", ".join(config.measured_last)
        console.print(f"{looked.unasked:,} of the newly kept were not measured for {last}, whose rules come later.")
    _print_documents("Kept by the rule, nearest first", looked.passing)
    _print_documents("Removed by the rule, nearest first", looked.failing)
    if page is not None:
        console.print(f"Written: {escape(str(page))}", soft_wrap=True, highlight=False)


def _loaded(name: str, overrides: list[str] | None, store: str | None) -> tuple[Profile, FilterConfig]:
    from profiles.load import load

    profile = load(name, settings(overrides, store))
    if profile.filter is None:
        raise ConfigError(f"Profile {profile.name} has no filter.", "Add a section `filter:` to it.")
    return profile, profile.filter


def _changes(looked: Inspection, moved: bool) -> list[Row]:
    """Documents by source, and if the threshold was moved, those kept before and after."""
    rows: list[Row] = []
    for source in [*sorted(looked.documents), *([""] if len(looked.documents) > 1 else [])]:
        counters = [looked.documents, looked.before]
        counters += [looked.after, looked.newly_removed, looked.newly_kept] if moved else []
        heads = ["documents", "kept now" if moved else "kept", "kept then", "newly removed", "newly kept"]
        counts = [counter[source] if source else counter.total() for counter in counters]
        cells = dict(zip(heads, (f"{count:,}" for count in counts), strict=False))
        rows.append({"source": source or "all", **cells})
    return rows


def _spread(looked: Inspection) -> list[Row]:
    """Quantiles of the signal by source."""
    from tasks.filter.inspect.threshold import QUANTILES

    heads = [f"{100 * share:g} %" for share in QUANTILES]
    return [
        {"source": source, **{head: f"{value:.4g}" for head, value in zip(heads, values, strict=True)}}
        for source, values in looked.quantiles().items()
    ]


def _print_rows(title: str, rows: Sequence[Row]) -> None:
    if rows:
        heads = list(rows[0])
        table = new_table(*heads, right=heads[1:], title=title)
        for row in rows:
            table.add_row(*(escape(harmless(cell)) for cell in row.values()))
        console.print(table)


def _print_documents(title: str, shown: Sequence[Nearby]) -> None:
    console.print(f"\n[bold]{title}[/]" + ("" if shown else ": none that every other rule keeps"))
    for document in shown:
        head = f"{document.value:.4g}  {document.id} from {harmless(document.source)}"
        console.print(f"\n{escape(head)}", style="bold", highlight=False)
        text = document.text[:PREVIEW] + ("…" if len(document.text) > PREVIEW else "")
        console.print(escape(harmless(text)), highlight=False)
