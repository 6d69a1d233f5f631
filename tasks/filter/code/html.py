"""The part of an HTML source that a reader sees, roughly and in linear time: no tags, comments, scripts or styles."""

from __future__ import annotations

import html
import re

_OPENING = re.compile(r"<(!--|script\b|style\b|[a-z/!?])", re.IGNORECASE)
_CLOSING = {
    "!--": re.compile("-->"),
    "script": re.compile(r"</script\s*>", re.IGNORECASE),
    "style": re.compile(r"</style\s*>", re.IGNORECASE),
}
_TAG_END = re.compile(">")


def visible(source: str) -> str:
    """The text of a page. A tag or comment that is never closed hides everything after it, as in a browser."""
    parts: list[str] = []
    at = 0
    while opening := _OPENING.search(source, at):
        parts.append(source[at : opening.start()])
        closing = _CLOSING.get(opening[1].lower(), _TAG_END).search(source, opening.end())
        if closing is None:
            return html.unescape("".join(parts))
        at = closing.end()
    return html.unescape("".join([*parts, source[at:]]))
