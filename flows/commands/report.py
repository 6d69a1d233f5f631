"""`gristmill report`: a run, or two side by side, as one page for a browser or as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.options import DEFAULT_STORE, StoreUrl
from flows.tables import Terminal
from storage.errors import ConfigError

if TYPE_CHECKING:
    from flows.report.drawing.page import Page
    from storage.store import Store

EXAMPLES = 2
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
        float | None, typer.Option(min=0, max=1e6, help="USD per device and hour, in place of the assumed price")
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=0, max=20, help=f"removed documents shown for each reason (0: read no texts) [{EXAMPLES}]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the numbers as JSON instead")] = False,
    store: StoreUrl = None,
) -> None:
    """Write a page about a run: its data, trainings, scores, formats, costs and lineage. Needs only the store.

        gristmill report tiny

        gristmill report tiny/export@1 tiny/export@2

        gristmill report tiny/ablate         # also tiny/scaling and tiny/mix

    The page is one file that loads nothing. It shows the beginnings of removed documents, with personal data of a fixed
    form masked. `--examples 0` leaves them out. Two runs side by side: what differs, and which differences are real.
    """
    from flows.commands.store import open_store

    if as_json and output is not None:
        raise ConfigError("--json prints, so --output doesn't apply.", "Leave one out.")
    if second is not None and examples is not None:
        raise ConfigError("--examples is for the report of one run.", "Leave it out.")
    opened = open_store(store or DEFAULT_STORE)
    page: Page
    many = None if second is not None else _of_many(opened, first)
    if many is not None:
        page = many
        as_text = json.dumps(many.data, ensure_ascii=False, indent=1)
    elif second is None:
        from flows.report.report import report_of
        from flows.report.run_page import page_of

        one = report_of(opened, first, price=price, examples=EXAMPLES if examples is None else examples)
        page, as_text = page_of(one), one.model_dump_json(indent=1)
    else:
        from flows.report.comparison_page import page_of_both
        from flows.report.differences import comparison_of

        both = comparison_of(opened, first, second, price=price)
        page, as_text = page_of_both(both), both.model_dump_json(indent=1)
    if as_json:
        print(as_text)
        return
    name = "-".join(re.sub(r"\W+", "-", ref) for ref in (first, second) if ref)
    _write(output or Path(f"report-{name}.html"), page.render())


def _of_many(store: Store, name: str) -> Page | None:
    """The page of what compares many runs: a matrix, a ladder or a mixture. None for other artifacts."""
    from flows.report.report import find

    location = find(store, name)
    match location.partition("/")[0]:
        case "ablate":
            from flows.report.matrices.ablation_page import page_of_matrix as page_of
        case "scaling":
            from flows.report.matrices.law_page import page_of_law as page_of
        case "mix":
            from flows.report.matrices.mixture_page import page_of_mixture as page_of
        case _:
            return None
    return page_of(name, store.get(location))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} can't be written: {error.strerror}.", "Name another file: --output FILE") from error
    console.print(f"Written: {file}", markup=False)
