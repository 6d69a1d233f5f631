"""The result of an inspection as a page for a browser: one file without scripts, and without other resources."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

from tasks.filter.inspect.threshold import Inspection, Nearby

STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.15rem .8rem;text-align:right}td:first-child,th:first-child"
    "{text-align:left}pre{white-space:pre-wrap;background:#8881;padding:.7rem;max-height:24rem;overflow:auto}"
)


def page(
    looked: Inspection, profile: str, changes: Sequence[Mapping[str, str]], spread: Sequence[Mapping[str, str]]
) -> str:
    """HTML with the tables and the documents on both sides of the threshold, in full."""
    rule = looked.rule
    head = html.escape(
        f"{rule.name} of {profile}" + ("" if rule.threshold is None else f", threshold {rule.threshold:g}")
    )
    return "\n".join(
        [
            f'<!doctype html><meta charset="utf-8"><title>{head}</title><style>{STYLE}</style><h1>{head}</h1>',
            "<h2>Documents kept, by source</h2>",
            _table(changes),
            "<h2>The signal, by source</h2>",
            _table(spread),
            "<h2>Kept by the rule, nearest to its threshold first</h2>",
            *_documents(looked.passing),
            "<h2>Removed by the rule, nearest to its threshold first</h2>",
            *_documents(looked.failing),
            "",
        ]
    )


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    heads = "".join(f"<th>{html.escape(head)}" for head in (rows[0] if rows else ()))
    cells = ["".join(f"<td>{html.escape(cell)}" for cell in row.values()) for row in rows]
    return f"<table><tr>{heads}" + "".join(f"<tr>{row}" for row in cells) + "</table>"


def _documents(shown: Iterable[Nearby]) -> Iterable[str]:
    for document in shown:
        named = html.escape(f"{document.id} from {document.source}")
        yield f"<h3>{document.value:.4g} · {named}</h3><pre>{html.escape(document.text)}</pre>"
