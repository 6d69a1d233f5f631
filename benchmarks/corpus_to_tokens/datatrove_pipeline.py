"""datatrove's pipeline of the same steps, by the peers' own environment: no import of the project here.

`datatrove_pipeline.py TEXT.jsonl WORK_FOLDER TOKENIZER.json LID.ftz [--plain]`: its blocks with their defaults, in the
order of its example examples/fineweb.py; steps are called one after the other in this process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
)
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.utils import word_tokenizers
from datatrove.utils.logging import logger
from fasttext.FastText import _FastText


class PlainTokenizer:
    """Words by white space alone; a text is one sentence for each of its lines."""

    def word_tokenize(self, text: str) -> list[str]:
        """What white space separates."""
        return text.split()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each line."""
        spans, start = [], 0
        for line in text.splitlines(keepends=True):
            spans.append((start, start + len(line)))
            start += len(line)
        return spans or [(0, len(text))]


def read(source: Path) -> Iterator[Any]:
    """The documents of the file."""
    documents: Iterator[Any] = JsonlReader(str(source.parent), glob_pattern=source.name).run(None, 0, 1)
    return documents


def remove_duplicates(source: Path, work: Path) -> Iterator[Any]:
    """Its four steps; the documents that stay."""
    config = MinhashConfig()
    signatures, pairs, removed = (str(work / name) for name in ("signatures", "buckets", "removed"))
    MinhashDedupSignature(signatures, config).run(read(source), 0, 1)
    for bucket in range(config.num_buckets):
        MinhashDedupBuckets(signatures, pairs, config=config, lines_to_buffer=-1).run(None, bucket, config.num_buckets)
    MinhashDedupCluster(pairs, removed, config, lines_to_buffer=-1).run(None, 0, 1)
    kept: Iterator[Any] = MinhashDedupFilter(removed).run(read(source), 0, 1)
    return kept


def main() -> None:
    """Run all steps, print what stayed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("text", "work", "tokenizer", "model"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--plain", action="store_true", help="words and sentences without spaCy")
    arguments = parser.parse_args()
    logger.remove()
    if arguments.plain:
        plain = PlainTokenizer()
        word_tokenizers.load_word_tokenizer = lambda language: plain
    language = LanguageFilter(languages="en")
    language.model._model = _FastText(str(arguments.model))  # it would download its own
    documents = remove_duplicates(arguments.text, arguments.work)
    steps = (
        language,
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
        PIIFormatter(),
    )
    for step in steps:
        documents = step.run(documents, 0, 1)
    kept = 0

    def counted() -> Iterator[Any]:
        nonlocal kept
        for document in documents:
            kept += 1
            yield document

    tokens = DocumentTokenizer(str(arguments.work / "tokens"), str(arguments.tokenizer), shuffle_documents=False)
    for _ in tokens.run(counted(), 0, 1) or ():
        pass
    size = sum(path.stat().st_size for path in (arguments.work / "tokens").glob("*.ds"))
    print(json.dumps({"kept": kept, "tokens": size // 2}))


if __name__ == "__main__":
    main()
