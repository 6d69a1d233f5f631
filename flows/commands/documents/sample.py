"""`gristmill sample REF`: documents of an artifact, at the terminal, as JSON, or as a local page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.options import DEFAULT_STORE, StoreUrl
from flows.tables import Terminal
from storage.errors import ConfigError

if TYPE_CHECKING:
    from flows.commands.documents.choose import Chosen, Wish

FOLDERS = ("documents", "removed")
ON_PAGE = 20_000  # characters of a document on a page, if not asked otherwise
AT_TERMINAL = 600
console = Terminal(highlight=False, soft_wrap=True)


def sample(
    ref: Annotated[str, typer.Argument(help="an artifact with documents: a ref such as tiny/filter, or stage/key")],
    by: Annotated[
        str,
        typer.Option(
            metavar="MEASURE",
            help="random, longest, shortest, repetitive, or the highest of a signal as NAME:COLUMN: "
            "tiny/toxicity:toxicity_score, or a family that the filter's artifact used: toxicity:toxicity_score",
        ),
    ] = "random",
    lowest: Annotated[bool, typer.Option("--lowest", help="the lowest of the signal instead")] = False,
    number: Annotated[int, typer.Option(min=1, max=10_000, help="number of documents")] = 10,
    source: Annotated[str, typer.Option(help="only documents of this source")] = "",
    search: Annotated[
        str, typer.Option(metavar="WORDS", help="only documents with these words in their text, in any case")
    ] = "",
    seed: Annotated[int, typer.Option(help="another seed draws other documents")] = 0,
    removed: Annotated[
        bool, typer.Option("--removed", help="documents that the filter removed, if filter.keep_removed kept them")
    ] = False,
    width: Annotated[
        int | None,
        typer.Option(min=0, help=f"characters shown of each (0: all), by default {AT_TERMINAL}, {ON_PAGE} with --html"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a page with search to this file, which loads nothing")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    store: StoreUrl = None,
) -> None:
    """Show documents of an artifact: at random, the longest, the most repetitive, the worst by a signal.

        gristmill sample tiny/dedup --by repetitive

        gristmill sample tiny/filter --by toxicity:toxicity_score --number 100 --html worst.html

    The same seed shows the same documents. Texts are shown as they are stored, with personal data in them.
    """
    from flows.commands.documents.choose import LONGEST, RANDOM, REPETITIVE, SHORTEST, Wish, choose, signal_of
    from flows.commands.store import open_store
    from storage import refs

    if lowest and by in (RANDOM, LONGEST, SHORTEST, REPETITIVE):
        raise ConfigError(f"--lowest doesn't apply to --by {by}.", "Leave it out, or name a signal: --by NAME:COLUMN.")
    if seed and by != RANDOM:
        raise ConfigError("--seed is for a random choice.", "Leave it out, or choose --by random.")
    if html and as_json:
        raise ConfigError("--html and --json exclude each other.", "Leave one out.")
    opened = open_store(store or DEFAULT_STORE)
    artifact = opened.get(refs.resolve(opened, ref), hashed=False)
    folder = FOLDERS[removed]
    if not artifact.has_folder(folder):
        kept = "Set `filter.keep_removed: true` and run again." if removed else ""
        raise ConfigError(f"{ref} has no {folder}.", kept or "Name a download, dedup or filter: tiny/dedup.")
    shown = (ON_PAGE if html else AT_TERMINAL) if width is None else width
    wish = Wish(by, number, source, search, seed, lowest, shown)
    chosen = choose(artifact.part(folder), wish, signal_of(opened, artifact, by))
    head = _head(ref, chosen, wish)
    if html:
        _write_page(html, head, chosen)
    elif as_json:
        _print_json(chosen)
    else:
        _print(head, chosen)


def _head(ref: str, chosen: Chosen, wish: Wish) -> str:
    order = f"{'lowest ' if wish.lowest else ''}{wish.by}"
    matching = f"{chosen.matching:,} that match of " if chosen.matching != chosen.total else ""
    return f"{ref}: {len(chosen.documents):,} by {order}, of {matching}{chosen.total:,} documents"


def _print_json(chosen: Chosen) -> None:
    rows = [{**one._asdict(), "left_out": one.left_out} for one in chosen.documents]
    print(json.dumps({"matching": chosen.matching, "total": chosen.total, "documents": rows}, indent=1))


def _print(head: str, chosen: Chosen) -> None:
    from flows.commands.documents.sample_page import with_notices

    console.print(head, markup=False)
    for one in chosen.documents:
        value = "" if one.value is None else f"{one.value:.4g}  "
        line = f"{value}{one.id} from {one.source}  {one.characters:,} characters  {one.origin}".rstrip()
        console.print(f"\n{' '.join(line.splitlines())}", style="bold", markup=False)
        console.print(with_notices(one), markup=False)


def _write_page(file: Path, head: str, chosen: Chosen) -> None:
    from flows.commands.documents.sample_page import page

    try:
        file.write_text(page(head, chosen.documents), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} can't be written: {error.strerror}.", "Give --html another path.") from error
    console.print(f"{head}\nWritten: {file}", markup=False)
