"""The pages of the documentation, their code blocks and their links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(
    r"(?:^<!-- needs: (?P<needs>[^>]*) -->\n)?^ *```(?P<kind>\w*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
ASSIGNMENT = re.compile(r"[A-Z_]+=\S*")


@dataclass(frozen=True)
class Block:
    """A fenced block. `needs` is what it takes to run it that the tests don't have, from the comment before it."""

    page: Path
    line: int
    kind: str
    text: str
    needs: str

    @property
    def name(self) -> str:
        """PAGE:LINE, as an editor opens it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command of a block, cut into words."""

    block: Block
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """PAGE:LINE COMMAND."""
        return f"{self.block.name} {' '.join(self.words)}"


def blocks(*kinds: str) -> Iterator[Block]:
    """Every block of one of these kinds; the kind of a plain fence is empty."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            if found["kind"] in kinds:
                line = text.count("\n", 0, found.start("kind")) + 1
                yield Block(page, line, found["kind"], found["text"], found["needs"] or "")


def commands(program: str) -> Iterator[Command]:
    """Every line of a block that begins with `program`, after a prompt or variables if it has any."""
    for block in blocks("", "bash"):
        for line in block.text.replace("\\\n", " ").splitlines():
            if program not in line:
                continue
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words and ASSIGNMENT.fullmatch(words[0]):
                words = words[1:]
            if words[:1] == [program]:
                yield Command(block, tuple(words))


def links(page: Path) -> Iterator[str]:
    """Where a page's links and pictures point to."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    return (found[1] for found in LINK.finditer(prose))


def anchors(page: Path) -> set[str]:
    """The headings of a page as addresses, the way GitHub makes them."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
