"""Questions and answers of StackExchange, from their HTML to text. Runs in the process of `tasks/text/process.py`.

The HTML comes from Markdown, so it has few tags. Code is kept between the marks of Markdown, with its line ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from tasks.text.scripts import shifted_in_html

PARAGRAPHS = {"p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "table", "dl", "hr", "section", "details", "summary"}
FENCE = "```"
BLANKS = re.compile(r"[ \t\r\n\f]+")


def reader() -> Callable[..., dict[str, Any]]:
    """The function from a question's title and body and its answers' bodies to its `text`."""
    return lambda title, question, answers: {"text": thread(title, question, answers)}


def thread(title: str, question: str, answers: list[str]) -> str:
    """The text of a question: its title, its body, and each answer below a line that says so. Empty without a body."""
    body = text_of(question)
    if not body:
        return ""
    found = [text for text in map(text_of, answers) if text]
    return "\n\n".join([*([title] if title else []), body, *(f"Answer:\n\n{text}" for text in found)])


def text_of(html: str) -> str:
    """The text of a post."""
    parser = _Post()
    parser.feed(shifted_in_html(html))
    parser.close()
    return parser.text()


class _Post(HTMLParser):
    """Lines of text, as they are collected."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._lists: list[int | None] = []  # numbers of ordered lists
        self._raw = self._code = 0
        self._quote = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin what a tag marks."""
        if tag == "pre":
            self._add(f"\n\n{FENCE}\n")
            self._raw += 1
        elif tag == "code" and not self._raw:
            self._add("`")
            self._code += 1
        elif tag in ("ul", "ol"):
            self._add("" if self._lists else "\n\n")
            self._lists.append(1 if tag == "ol" else None)
        elif tag == "li":
            number = self._lists[-1] if self._lists else None
            self._add(f"\n{'  ' * (len(self._lists) - 1)}{'-' if number is None else f'{number}.'} ")
            if number is not None:
                self._lists[-1] = number + 1
        elif tag == "br":
            self._add("\n")
        elif tag == "blockquote":
            self._add("\n\n> ")
            self._quote += 1
        elif tag in PARAGRAPHS and not (self._parts and self._parts[-1].endswith(("- ", ". ", "> "))):
            self._add("\n\n> " if self._quote else "\n\n")

    def handle_endtag(self, tag: str) -> None:
        """End what a tag marks."""
        if tag == "pre" and self._raw:
            self._raw -= 1
            self._add(f"{'' if self._parts and self._parts[-1].endswith(chr(10)) else chr(10)}{FENCE}\n\n")
        elif tag == "code" and self._code and not self._raw:
            self._code -= 1
            self._add("`")
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
            self._add("" if self._lists else "\n\n")
        elif tag == "blockquote" and self._quote:
            self._quote -= 1
            self._add("\n\n")
        elif tag in PARAGRAPHS:
            self._add("\n\n")
        elif tag in ("td", "th"):
            self._add(" | ")
        elif tag == "tr":
            self._add("\n")

    def handle_data(self, data: str) -> None:
        """Text between tags."""
        if self._raw:
            self._add(data.replace("\r\n", "\n"))
        else:
            words = BLANKS.sub(" ", data)
            begun = not self._parts or self._parts[-1].endswith(("\n", " "))
            self._add(words.lstrip() if begun else words)

    def _add(self, text: str) -> None:
        if text:
            self._parts.append(text)

    def text(self) -> str:
        """All of it, with single blank lines between paragraphs, but not within code."""
        pieces = "".join(self._parts).split(FENCE)
        for number in range(0, len(pieces), 2):
            lines = re.sub(r"[ \t]+\n", "\n", pieces[number])
            pieces[number] = re.sub(r"\n{3,}", "\n\n", lines)
        return FENCE.join(pieces).strip()
