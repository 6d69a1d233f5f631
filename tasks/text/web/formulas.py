"""Formulas of HTML as TeX between dollar signs, as extractors leave `<math>` out.

Pages carry TeX in several places: as an annotation of MathML (KaTeX, and most converters), as the `alttext` of `<math>`
(LaTeXML, Wikipedia), and in scripts of MathJax 2. MathML without TeX gives its text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resiliparse.parse.html import ElementNode, HTMLTree

# Outermost first: what a browser shows beside the MathML is replaced with it
SCRIPT = "script[type^='math/tex']"
FORMULAS = (".mwe-math-element", ".katex", "mjx-container", "math", SCRIPT, "img.latex")
RENDERED = ".MathJax_Preview, .MathJax, .MathJax_Display, .MathJax_SVG, .mjx-chtml"  # beside scripts, by MathJax 2
TEX_SIGNS = re.compile(r"[\\^_{}]")
PROSE = re.compile(r"[A-Za-z]{4,}")  # in an `alttext` for people, beside blanks
STYLED = re.compile(r"^\{\\displaystyle\s*(.*)\}$", re.DOTALL)  # Wikipedia's, around every formula
TEX = "annotation[encoding='application/x-tex'], annotation[encoding='TeX' i]"


def put_formulas(tree: HTMLTree) -> bool:
    """Put text in the place of the formulas of a page. Whether there are any."""
    page = tree.document
    if page is None or page.query_selector(", ".join(FORMULAS)) is None:
        return False
    if page.query_selector(SCRIPT):
        for node in page.query_selector_all(RENDERED):
            node.decompose()
    for selector in FORMULAS:
        for node in page.query_selector_all(selector):
            if (text := _text(node)) and (made := tree.create_text_node(f" {text} ")):
                node.replace_with(made)
    return True


def _text(node: ElementNode) -> str:
    """A formula between dollar signs, two of them if it is displayed. Empty if there is none."""
    math = node if node.tag == "math" else node.query_selector("math")
    script = node.getattr("type") or ""
    source = node if script else node.query_selector(TEX)
    stated = math.getattr("alttext") if math else node.getattr("alt")
    tex = ((source.text if source else "") or stated or "").strip()
    if not tex or (not source and not TEX_SIGNS.search(tex) and " " in tex and PROSE.search(tex)):
        return (math.text or "").strip() if math else ""
    tex = STYLED.sub(r"\1", tex)
    displayed = "display" in script or (math is not None and math.getattr("display") == "block")
    return f"$${tex}$$" if displayed else f"${tex}$"
