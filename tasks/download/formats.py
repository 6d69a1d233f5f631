"""Which format a document has, by the ending of its file."""

from __future__ import annotations

from pathlib import Path

from tasks.text.languages import BY_EXTENSION

# Languages that aren't source code: data, which sources of rows read, and text that has a format of its own
OTHERWISE = {"CSV", "JSON", "Jupyter Notebook", "SVG", "HTML", "Markdown", "Text", "reStructuredText", "Diff"}
OFFICE = {".pdf": "pdf", ".docx": "docx", ".odt": "odt", ".pptx": "pptx", ".epub": "epub"}
TEXTS = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".eml", ".mbox"), "mail"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    **dict.fromkeys((".txt", ".rst"), "text"),
}
CODE = {f".{extension}": "code" for extension, language in BY_EXTENSION.items() if language not in OTHERWISE}
FORMATS = {**CODE, **TEXTS, **OFFICE}
MAILBOX = ".mbox"


def form_of(path: Path) -> str:
    """The format of a file whose ending is one of FORMATS, in upper or lower case."""
    return FORMATS[path.suffix.lower()]
