"""The commands of a takedown: `gristmill trace` and `gristmill forget`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.options import DEFAULT_STORE, StoreUrl
from flows.tables import Terminal
from storage.errors import ConfigError

console = Terminal(wide=True, highlight=False)
DOCUMENT = "a document's id, the SHA-256 of its text, its URL, or a host"
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


def trace(
    documents: Annotated[list[str], typer.Argument(metavar="DOC...", help=DOCUMENT)],
    within: Annotated[
        str | None, typer.Option("--of", metavar="REF", help="search the lineage of this artifact, such as mine/export")
    ] = None,
    as_json: AsJson = False,
    store: StoreUrl = None,
) -> None:
    """List the artifacts of a store that hold a document, and those that learned from it, up to releases.

    Of a pretraining, also the steps that read it. --json has every step, with the tokens that it learned to predict.

        gristmill trace 1f3870be274f6c49b3e31a0c6728957f --of mine/export

    To take it out, see gristmill forget.

    Exit status: 0 if everything was searched, 1 if an artifact is damaged or missing, which is named.
    """
    from flows.commands.documents.trace import show_trace
    from flows.commands.store import open_store

    if not show_trace(console, open_store(store or DEFAULT_STORE), documents, within, as_json):
        raise typer.Exit(1)


def forget(
    documents: Annotated[list[str] | None, typer.Argument(metavar="DOC...", help=DOCUMENT)] = None,
    within: Annotated[
        str | None, typer.Option("--of", metavar="REF", help="plan for the lineage of this artifact, by default all")
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(metavar="REF", help="search the lineage of this artifact, and exit with 1 if anything is found"),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the document's text, if no artifact holds it any more")
    ] = None,
    words: Annotated[
        int, typer.Option(min=8, max=10_000, help="a quotation has at least this many words of the document")
    ] = 50,
    similarity: Annotated[
        float | None,
        typer.Option(
            min=0.1, max=1, help="least Jaccard similarity of a near-duplicate, by default that of the lineage's dedup"
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="only documents of this id, URL or host, and those made from them")
    ] = False,
    as_json: AsJson = False,
    store: StoreUrl = None,
) -> None:
    """Plan a takedown: what to write into the profile, what else is like the document, and what is made again.

    Deletes nothing. The takedown itself is that edit and a run, after which --verify proves it:

        gristmill forget 1f3870be274f6c49b3e31a0c6728957f --of mine/export

        gristmill run mine.yaml

        gristmill forget 1f3870be274f6c49b3e31a0c6728957f --verify mine/export

    --verify searches documents, tokens, pairs, benchmarks and cards of all artifacts that REF was made of: for the
    document itself, near-duplicates, texts that contain it, quotations, and texts that a model made from it. Then it
    lists what still holds the document outside that lineage. It doesn't find a paraphrase or a translation.

    Exit status: 0 if nothing is found, 1 if something is, or if the text isn't known and so only ids could be searched.
    """
    from flows.commands.documents.forget import Wish, plan_takedown, prove_takedown
    from flows.commands.store import open_store

    if not documents and text is None:
        raise ConfigError("Nothing says which document.", "Give its id, hash, URL or host, or --text FILE.")
    if text is not None and documents and len(documents) > 1:
        raise ConfigError("--text is the text of one document.", "Name one, or leave --text out.")
    if within and verify:
        raise ConfigError("--of is for a plan, --verify for a proof.", "Leave one out.")
    wish = Wish(documents or [], text, words, similarity, exact)
    opened = open_store(store or DEFAULT_STORE)
    if verify is None:
        plan_takedown(console, opened, wish, within, as_json)
    elif not prove_takedown(console, opened, wish, verify, as_json):
        raise typer.Exit(1)
