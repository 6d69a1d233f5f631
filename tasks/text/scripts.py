"""Superscript and subscript in plain text: 10⁶ and H₂O, as 106 would be another number."""

from __future__ import annotations

import re
from typing import Literal

Script = Literal["sup", "sub"]
TABLES: dict[Script, dict[int, int]] = {
    "sup": str.maketrans("0123456789+-−=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿ"),
    "sub": str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎"),
}
HTML = re.compile(r"<(su[pb])(?:\s[^<>]*)?>([^<>]{1,20})</\1>", re.IGNORECASE)


def shifted(text: str, script: Script) -> str:
    """Text above or below the line, if there are such characters for all of it. Otherwise as it is."""
    bare, table = text.strip(), TABLES[script]
    return text.translate(table) if bare and all(ord(sign) in table for sign in bare) else text


def shifted_in_html(html: str) -> str:
    """HTML with text above or below the line as such characters, where there are any for all of it."""
    return HTML.sub(_shifted, html)


def _shifted(found: re.Match[str]) -> str:
    whole, text = found.group(), found.group(2)
    script: Script = "sup" if found.group(1).lower() == "sup" else "sub"
    return shown if (shown := shifted(text, script)) != text else whole
