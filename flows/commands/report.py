"""`gristmill report`: a run as one page for a browser, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.options import DEFAULT_STORE, StoreUrl
from flows.tables import Terminal

console = Terminal(highlight=False, soft_wrap=True)


def report(
    first: Annotated[
        str, typer.Argument(metavar="REF", help="what to report on: a ref such as tiny/export, stage/key, or a profile")
    ],
    second: Annotated[str | None, typer.Argument(metavar="OTHER", help="another, set beside it")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="the page, by default named after the refs")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="USD per device and hour, in place of the assumed price")
    ] = None,
    examples: Annotated[
        int, typer.Option(min=0, max=20, help="removed documents shown for each reason (0: read no texts)")
    ] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON instead")] = False,
    store: StoreUrl = None,
) -> None:
    """Write a page about a run: its data, trainings, scores, formats, costs and lineage. Needs only the store.

        gristmill report tiny

        gristmill report tiny/export@1 tiny/export@2

    The page is one file that loads nothing. It shows the beginnings of removed documents, with personal data of a fixed
    form masked: --examples 0 leaves them out.
    """
    from flows.commands.store import open_store
    from flows.report.report import report_of
    from flows.report.run_page import page_of
    from storage.errors import ConfigError

    if as_json and output is not None:
        raise ConfigError("--json prints, so --output doesn't apply.", "Leave one out.")
    opened = open_store(store or DEFAULT_STORE)
    found = report_of(opened, first, price=price, examples=examples)
    if as_json:
        print(found.model_dump_json(indent=1))
        return
    file = output or Path(f"report-{first.replace('/', '-').replace('@', '-')}.html")
    text = page_of(found).render()
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} can't be written: {error.strerror}.", "Name another file: --output FILE") from error
    console.print(f"Written: {file}", markup=False)
