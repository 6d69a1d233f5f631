"""`python -m benchmarks.dedup.copies DATA`: which of two copies is kept, the original or a changed one.

DATA is a folder with `pretrain/NAME/docs.jsonl.gz` and `filters/html_article_bench`. Real text, cut to 4,000
characters, gets menus and notices of real web pages around it, mangled white space, decomposed or misread letters, or
loses an end. Each pair goes through the stage; told is how often the original is kept of the pairs that are found.
Sources and pages are in two halves: `tune` is what the order of preference was chosen on, `report` is what it never
saw.
"""

from __future__ import annotations

import argparse
import gzip
import html
import json
import random
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from storage.artifact import Artifact
from storage.shards.documents import Document, read_documents, shard_name, write_documents
from tasks.dedup import DedupConfig, dedup
from tasks.stage.output import Output
from tasks.stage.runtime import DataRuntime, Runtime

HALVES = {
    "tune": ("pretrain/c4_demo", "pretrain/peps", "pretrain/wiki_vital_en", "pretrain/kids_books"),
    "report": (
        "pretrain/factbook",
        "pretrain/standard_ebooks",
        "pretrain/sotu",
        "pretrain/wikitext2_valid_test",
        "pretrain/tinystories_6k",
        "filters/wiki_vital_fr",
    ),
}
DOCUMENTS = 80  # of a source
LENGTH = 4000  # characters
LEAST = 600
AROUND = 0.09  # menus and notices, as a share of the text
LOST = 0.12
Change = Callable[[str, random.Random, list[str]], str]


def originals(folder: Path) -> Iterator[str]:
    """The beginnings of a source's documents, ending with a line, without defects of their own."""
    with gzip.open(folder / "docs.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            text = unicodedata.normalize("NFC", json.loads(line)["text"])[:LENGTH]
            text = text[: text.rfind("\n")].strip() if "\n" in text[LEAST:] else text.strip()
            if len(text) >= LEAST:
                yield text


def page_lines(folder: Path, half: int) -> list[str]:
    """Lines of the pages that stand before or after their article, in the page's order."""
    truth = json.loads((folder / "ground-truth.json").read_text(encoding="utf-8"))
    lines = []
    for name in sorted(truth)[half::2]:
        with gzip.open(folder / "html" / f"{name}.html.gz", "rt", encoding="utf-8", errors="replace") as file:
            page = re.sub(r"(?is)<(script|style|noscript|svg)\b.*?</\1>|<!--.*?-->", "", file.read())
        shown = html.unescape(
            re.sub(r"<[^>]*>", "", re.sub(r"(?i)</?(?:p|div|li|ul|br|h\d|tr|td|a|nav|footer)\b", "\n<", page))
        )
        article = " ".join(truth[name]["articleBody"].split())
        for line in shown.splitlines():
            line = " ".join(line.split())
            if len(line) > 2 and line not in article:
                lines.append(line)
    return lines


def menus(text: str, draw: random.Random, lines: list[str]) -> str:
    """Lines of a page before and after the text."""
    parts = []
    for _ in range(2):
        at = draw.randrange(len(lines) - 200)
        part: list[str] = []
        while sum(len(line) for line in part) < AROUND / 2 * len(text):
            part.append(lines[at])
            at += 1
        parts.append("\n".join(part))
    return f"{parts[0]}\n\n{text}\n\n{parts[1]}"


def white_space(text: str, draw: random.Random, lines: list[str]) -> str:
    """Doubled, hard and trailing blanks, tabs, empty lines."""
    kinds = ["  ", "\u00a0", " \t", "   "]
    text = re.sub(r" ", lambda _: draw.choice(kinds) if draw.random() < 0.1 else " ", text)
    return re.sub(r"\n+", lambda found: draw.choice([found[0], " \n", "\n\n\n"]), text)


def some_blanks(text: str, draw: random.Random, lines: list[str]) -> str:
    """A few doubled blanks."""
    places = [found.start() for found in re.finditer(r"(?<=\S) (?=\S)", text)]
    for place in sorted(draw.sample(places, 5), reverse=True):
        text = f"{text[:place]} {text[place:]}"
    return text


def one_line(text: str, draw: random.Random, lines: list[str]) -> str:
    """All lines joined; of a text that has some."""
    return " ".join(text.split()) if "\n" in text else text


def one_line_edited(text: str, draw: random.Random, lines: list[str]) -> str:
    """All lines joined, and one word another."""
    if "\n" not in text:
        return text
    words = text.split()
    words[draw.randrange(len(words))] = "another"
    return " ".join(words)


def carriage_returns(text: str, draw: random.Random, lines: list[str]) -> str:
    """Line ends of Windows."""
    return text.replace("\n", "\r\n")


def decomposed(text: str, draw: random.Random, lines: list[str]) -> str:
    """NFD."""
    return unicodedata.normalize("NFD", text)


def misread(text: str, draw: random.Random, lines: list[str]) -> str:
    """UTF-8 read as Windows-1252, where it can be."""
    return re.sub(r"[^\x00-\x7f]+", lambda found: found[0].encode().decode("cp1252", "replace"), text)


def replaced(text: str, draw: random.Random, lines: list[str]) -> str:
    """Five characters lost to U+FFFD."""
    letters = list(text)
    for place in draw.sample(range(len(letters)), 5):
        letters[place] = "\ufffd"
    return "".join(letters)


def cut_end(text: str, draw: random.Random, lines: list[str]) -> str:
    """The end lost."""
    return text[: int(len(text) * (1 - LOST))]


def cut_end_at_line(text: str, draw: random.Random, lines: list[str]) -> str:
    """The last lines lost."""
    end = text.rfind("\n", int(len(text) * 0.82), int(len(text) * 0.98))
    return text[:end].rstrip() if end > 0 else text


def cut_start(text: str, draw: random.Random, lines: list[str]) -> str:
    """The beginning lost."""
    return text[int(len(text) * LOST) :]


CHANGES: tuple[Change, ...] = (
    menus,
    white_space,
    some_blanks,
    one_line,
    one_line_edited,
    carriage_returns,
    decomposed,
    misread,
    replaced,
    cut_end,
    cut_end_at_line,
    cut_start,
)


def kept(pairs: list[tuple[str, str]]) -> tuple[int, int, int]:
    """(pairs found to be duplicates, of these with the original kept, with the longer in characters being it)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = [Document.new(text, "a") for pair in pairs for text in pair]
        write_documents(folder / "in" / shard_name(0), documents)
        out = Output.at(folder / "out", stage="dedup", runtime=Runtime(data=DataRuntime(workers=1)))
        config = DedupConfig(max_removed_share_per_source=1.0)
        dedup.function(config, Artifact(folder=folder / "in", digest=""), out)
        left = {document.id for path in out.path.glob("documents/*") for document in read_documents(path)}
    found = right = longest = 0
    for number, (original, copy) in enumerate(pairs):
        stays = [document.id in left for document in documents[2 * number : 2 * number + 2]]
        found += sum(stays) == 1
        right += stays == [True, False]
        longest += sum(stays) == 1 and len(original) >= len(copy)
    return found, right, longest


def main() -> None:
    """The table of both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--half", choices=list(HALVES), action="append")
    options = parser.parse_args()
    for half in options.half or list(HALVES):
        lines = page_lines(options.data / "filters/html_article_bench", list(HALVES).index(half))
        print(f"\n| {half} | pairs | original kept | % | longest in characters % |\n|---|---|---|---|---|")
        for change in CHANGES:
            draw = random.Random(7)
            pairs = []
            for source in HALVES[half]:
                texts = list(dict.fromkeys(originals(options.data / source)))
                for text in draw.sample(texts, min(DOCUMENTS, len(texts))):
                    copy = change(text, draw, lines)
                    if copy != text:
                        pairs.append((text, copy))
            found, right, longest = kept(pairs)
            shares = f"{100 * right / max(found, 1):.1f} | {100 * longest / max(found, 1):.1f}"
            print(f"| {change.__name__.replace('_', ' ')} | {found} | {right} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
