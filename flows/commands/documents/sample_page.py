"""Documents as a page for a browser: one file that loads nothing, with a search in it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from storage.errors import harmless

if TYPE_CHECKING:
    from flows.commands.documents.choose import Shown

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}h2{font-size:1rem;margin-bottom:0}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:.7rem;max-height:24rem;overflow:auto}"
    "p{color:#777;margin:0;overflow-wrap:anywhere}input{font:inherit;width:20rem;max-width:100%}"
)
SEARCH = (
    "const box=document.querySelector('input'),all=[...document.querySelectorAll('article')],"
    "texts=all.map(one=>one.textContent.toLowerCase());"
    "box.oninput=()=>{const words=box.value.toLowerCase();let found=0;"
    "all.forEach((one,at)=>{one.hidden=!texts[at].includes(words);found+=!one.hidden});"
    "document.querySelector('output').textContent=found+' of '+all.length};box.oninput()"
)


def page(head: str, documents: Sequence[Shown]) -> str:
    """HTML with the documents under a heading. Nothing in a text is markup, and addresses are no links."""
    title = _safe(head)
    return "\n".join(
        [
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{title}</title><style>{STYLE}</style><h1>{title}</h1>",
            '<label>Search <input type="search" autofocus></label> <output></output>',
            *_articles(documents),
            f"<script>{SEARCH}</script>",
            "",
        ]
    )


def _articles(documents: Sequence[Shown]) -> Iterator[str]:
    for one in documents:
        value = "" if one.value is None else f"{one.value:.4g} · "
        yield f"<article><h2>{_safe(f'{value}{one.id} from {one.source}')}</h2>"
        yield f"<p>{_safe(' · '.join(filter(None, (f'{one.characters:,} characters', one.origin))))}</p>"
        yield f"<pre>{_safe(with_notices(one))}</pre></article>"


def with_notices(document: Shown) -> str:
    """The part of a text that is shown, and how much is left out before and after it."""
    before = f"[{document.start:,} characters before] … " if document.start else ""
    return before + document.text + (f" … [{document.left_out:,} more characters]" if document.left_out else "")


def _safe(text: str) -> str:
    return html.escape(harmless(text))
