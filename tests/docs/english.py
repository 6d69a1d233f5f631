"""`python -m tests.docs.english [PATH…]`: how plain the English is, counted; test_english.py holds the limits.

Each habit below reads as translated, or hides who does what. Counts are per thousand words of pages, descriptions of
profile keys, docstrings, comments, and the sentences that a user is shown. With paths, prints each place instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import FENCE, ROOT

PACKAGES = ("flows", "gristmill", "models", "profiles", "storage", "tasks")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/**/*.md")
GENERATED = "docs/profiles.md"  # from the descriptions, which are counted themselves
KINDS = ("page", "description", "docstring", "comment", "message")

HABITS = {  # a habit: the pattern that finds it
    "there is no … that": r"\bthere (?:is|are|was|were) (?:no|none|not)\b[^.;:]*\bthat\b",
    "that there is not": r"\bthat there (?:is|are|was) not\b|\bthere (?:is|are) none\b",
    "is no X": r"\b(?:is|are|was) no (?!longer|more\b|one\b)\w+",
    "told, tells of": r"\b(?:told|tells?|telling) (?:of|about|by|in|at|where|when)\b|\b(?:is|are|was) told\b",
    "stands": r"\b(?:stands?|stood|standing)\b(?! (?:for|in for|out|by)\b)",
    "alone for only": r"\balone\b",
    "of others": r"\b(?:of|by|from) others\b|\bothers'",
    "so many, so much": r"\bso (?:many|much|few)\b(?! (?:as|that)\b)",
    "has not": r"\b(?:has|have|had) (?:not|no)\b(?! (?:been|yet|\w+ed|run|made|read|seen|begun|done|come)\b)",
    "at the most": r"\bat the (?:most|least)\b",
    "anew": r"\banew\b",
    "what … opens": r"(?:^|[.:] )What (?!is|are|if|does|do|can|happens|to|should|about|version)[a-z]+ [^?]{,200}?[.:]",
    "semicolon": r";",
}
FOUND = {
    name: re.compile(pattern, re.MULTILINE | (0 if "opens" in name else re.IGNORECASE))
    for name, pattern in HABITS.items()
}
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+", re.DOTALL)
SENTENCE = re.compile(r"[A-Za-z]{2,}[,;:]? [A-Za-z]+[,;:]? [A-Za-z]+")


class Piece(NamedTuple):
    """A piece of prose: which kind, where it begins, and its words."""

    kind: str
    path: Path
    line: int
    text: str


def pieces() -> Iterator[Piece]:
    """All prose of the project, pages first."""
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    yield from (Piece("page", path, 1, _plain(path)) for path in pages if path != ROOT / GENERATED)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from of_module(path)


def _plain(page: Path) -> str:
    """A page without its blocks of code, each line kept in its place."""
    text = FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))
    return CODE.sub(lambda found: "\n" * found[0].count("\n"), text)


def of_module(path: Path) -> Iterator[Piece]:
    """The docstrings, descriptions, comments and messages of a module."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Piece("comment", path, token.start[0], token.string.lstrip("# "))
    tree = ast.parse(source)
    taken: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node):
                first = node.body[0]
                assert isinstance(first, ast.Expr)
                taken.add(id(first.value))
                yield Piece("docstring", path, first.lineno, CODE.sub("", ast.get_docstring(node) or ""))
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "description":
                    taken |= {id(inner) for inner in ast.walk(keyword.value)}
                    yield Piece("description", path, keyword.value.lineno, CODE.sub("", _words(keyword.value)))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in taken:
            taken |= {id(inner) for inner in ast.walk(node)}
            text = CODE.sub("", _words(node))
            if SENTENCE.search(text):
                yield Piece("message", path, node.lineno, text)


def _words(node: ast.AST) -> str:
    """The text of a string; what is filled in becomes an X."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return " ".join(filter(None, map(_words, ast.iter_child_nodes(node))))


def counts() -> tuple[Counter[str], dict[str, Counter[str]]]:
    """Words by kind, and by habit how often each kind has it."""
    words, habits = Counter[str](), {name: Counter[str]() for name in HABITS}
    for piece in pieces():
        words[piece.kind] += len(piece.text.split())
        for name, pattern in FOUND.items():
            habits[name][piece.kind] += len(pattern.findall(piece.text))
    return words, habits


def places(under: Path) -> Iterator[str]:
    """PATH:LINE, the habit, and the words around it, of each place under a path."""
    for piece in pieces():
        if piece.path.is_relative_to(under):
            for name, pattern in FOUND.items():
                for found in pattern.finditer(piece.text):
                    line = piece.line + piece.text.count("\n", 0, found.start())
                    around = " ".join(piece.text[max(0, found.start() - 40) : found.end() + 40].split())
                    yield f"{piece.path.relative_to(ROOT)}:{line}: {name}: {around}"


def main(paths: list[str]) -> None:
    """Print the places under these paths, or the table of all."""
    for path in paths:
        print(*places((ROOT / path).resolve()), sep="\n")
    if not paths:
        words, habits = counts()
        print("per 1,000 words".ljust(20), *(kind.rjust(12) for kind in KINDS), "all, number".rjust(12))
        for name, found in habits.items():
            shares = (f"{1000 * found[kind] / words[kind]:12.2f}" for kind in KINDS)
            print(name.ljust(20), *shares, f"{found.total():12,}")
        print("words".ljust(20), *(f"{words[kind]:12,}" for kind in KINDS), f"{words.total():12,}")


if __name__ == "__main__":
    main(sys.argv[1:])
