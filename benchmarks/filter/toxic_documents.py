"""Documents to measure toxicity on: labelled posts mixed into ordinary text, and clean ones from many sources.

Every post and every clean document belongs to one half by the hash of its text: thresholds were chosen on `tuned`, what
is reported is `reported`, and trained models see only `tuned`. A toxic document holds 4 to 12 toxic posts of one set,
which are 30, 50, 70 or 100 % of it, among sentences of ordinary text, in paragraphs, lines or all in one.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from storage.shards.documents import document_id
from tasks.filter.fasttext_model.sample import draw
from tasks.filter.toxicity.measure import pieces

HALVES = ("tuned", "reported")
SHARES = (0.3, 0.5, 0.7, 1.0)
BREAKS = {"paragraphs": "\n\n", "lines": "\n", "one paragraph": " "}
EACH = 300  # toxic documents of a set and half
THREADS = 150  # clean documents made of harmless posts, of a set and half
BEGINNING = 20_000  # characters of a clean document
FILLER = 250  # bytes
MOST_CLEAN = 2500  # of a source and half

# Columns of text and label, and the labels of toxic and of harmless posts
SETS = {
    "davidson, hate": ("tox_davidson/labeled_data.csv", "tweet", "class", {"0"}, {"2"}),
    "davidson, offence": ("tox_davidson/labeled_data.csv", "tweet", "class", {"1"}, {"2"}),
    "madlibs": ("tox_wiki_madlibs/toxicity_nonfuzzed_testset.csv", "comment", "toxic", {"True"}, {"False"}),
    "surge": ("tox_surge/toxicity_en.csv", "text", "is_toxic", {"Toxic"}, {"Not Toxic"}),
}


class Posts(NamedTuple):
    """The toxic and the harmless posts of a set."""

    toxic: list[str]
    harmless: list[str]


class Made(NamedTuple):
    """A document, whether it is toxic, the set or source that it is of, its toxic share, and where its lines end."""

    text: str
    toxic: bool
    source: str
    share: float
    layout: str


def half_of(text: str) -> str:
    """The half that a text belongs to."""
    return HALVES[draw(document_id(text), "benchmark") >= 0.5]


def read_posts(folder: Path) -> dict[str, Posts]:
    """The labelled sets."""
    found = {}
    for name, (path, text, label, toxic, harmless) in SETS.items():
        with (folder / path).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        sides = ([row[text] for row in rows if row[label] in wanted] for wanted in (toxic, harmless))
        found[name] = Posts(*sides)
    return found


def texts_in(path: Path) -> list[str]:
    """The texts of JSON lines, compressed or not."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def clean_documents(paths: Sequence[Path], half: str) -> list[Made]:
    """The beginnings of the texts of one half; sources are named after the folders of the files."""
    made = []
    for path in paths:
        texts = [text for text in texts_in(path) if half_of(text) == half]
        chosen = sorted(texts, key=lambda text: draw(document_id(text), "benchmark sample"))[:MOST_CLEAN]
        made += [Made(text[:BEGINNING], False, path.parent.name, 0.0, "as it is") for text in chosen]
    return made


def thread_documents(posts: dict[str, Posts], half: str) -> list[Made]:
    """Clean documents made of harmless posts."""
    made = []
    for name, found in posts.items():
        chance = random.Random(f"{name} {half} threads")
        pool = [text for text in found.harmless if half_of(text) == half]
        made += [
            Made("\n\n".join(chance.sample(pool, chance.randint(4, 12))), False, f"posts of {name}", 0.0, "paragraphs")
            for _ in range(THREADS)
            if name != "davidson, offence"  # the same harmless posts
        ]
    return made


def toxic_documents(posts: dict[str, Posts], filler: Sequence[str], half: str) -> list[Made]:
    """Toxic posts among sentences of ordinary text."""
    made = []
    for name, found in posts.items():
        chance = random.Random(f"{name} {half}")
        pool = [text for text in found.toxic if half_of(text) == half]
        for number in range(EACH):
            share = SHARES[number % len(SHARES)]
            parts = chance.sample(pool, chance.randint(4, 12))
            wanted, size = sum(map(len, parts)) * (1 - share) / share, 0
            while size < wanted:
                parts.append(chance.choice(filler))
                size += len(parts[-1])
            chance.shuffle(parts)
            layout = list(BREAKS)[number % len(BREAKS)]
            made.append(Made(BREAKS[layout].join(parts), True, name, share, layout))
    return made


def sentences_of(documents: Sequence[Made]) -> list[str]:
    """Pieces of a few sentences, to mix posts with."""
    return [
        text.strip()
        for text in pieces(pa.array([made.text[:4000] for made in documents], pa.string()), FILLER)[0].to_pylist()
        if len(text) > 100
    ]
