"""datatrove's four filters, run by the peers' own environment: no import of the project here.

`datatrove_filters.py chain IN [--plain]` runs them one after the other over a folder of Parquet shards, in FineWeb's
order (datatrove's examples/fineweb.py), and prints how many documents came and stayed, and the CPU seconds it took.
`datatrove_filters.py decide IN OUT` writes what each rule alone says of every document, and each filter's first reason.

`--plain` puts plain splits in place of its spaCy tokenizer, those of the project: words are what white space separates;
a sentence ends with terminal punctuation, and closing marks, before white space. `decide` always does.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.readers import ParquetReader
from datatrove.utils import word_tokenizers
from datatrove.utils.logging import logger
from datatrove.utils.text import TERMINAL_PUNCTUATION

FILTERS: dict[str, Any] = {
    "gopher_quality": GopherQualityFilter,
    "gopher_repetition": GopherRepetitionFilter,
    "c4": C4QualityFilter,
    "fineweb": FineWebQualityFilter,
}
OFF: dict[str, dict[str, Any]] = {  # every rule of a filter switched off
    "gopher_quality": {
        name: None for name in inspect.signature(GopherQualityFilter).parameters if name.startswith(("min_", "max_"))
    },
    "gopher_repetition": {
        **dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac")),
        "top_n_grams": (),
        "dup_n_grams": (),
    },
    "c4": {"filter_lorem_ipsum": False, "filter_curly_bracket": False, "min_num_sentences": -1},
    "fineweb": {
        "line_punct_thr": 0.0,
        "short_line_thr": math.inf,
        "char_duplicates_ratio": math.inf,
        "new_line_ratio": math.inf,
    },
}


class PlainTokenizer:
    """Words and sentences by white space alone."""

    ends = re.compile(f"[{re.escape(''.join(TERMINAL_PUNCTUATION))}][\"')\\]’”]*(?=\\s|\\Z)")

    def word_tokenize(self, text: str) -> list[str]:
        """What white space separates."""
        return text.split()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each sentence; datatrove reads the ends."""
        ends = [match.end() for match in self.ends.finditer(text)]
        if not ends or text[ends[-1] :].strip():
            ends.append(len(text))
        return list(zip([0, *ends[:-1]], ends, strict=True))


def use_plain_tokenizer() -> None:
    """Where datatrove asks for its tokenizer, it gets the plain one."""
    tokenizer = PlainTokenizer()
    word_tokenizers.load_word_tokenizer = lambda language: tokenizer


def read(source: Path) -> Iterator[Document]:
    """The documents of a folder of shards."""
    documents: Iterator[Document] = ParquetReader(str(source), glob_pattern="*.parquet", adapter=_from_row).run(
        None, 0, 1
    )
    return documents


def _from_row(reader: Any, row: dict[str, str], path: str, number: int | str) -> dict[str, Any]:
    return {"text": row["text"], "id": row["id"], "metadata": {}}


def chain(source: Path) -> dict[str, float]:
    """The four with their defaults: what one removes the next doesn't see. CPU seconds are from the first document on,
    with the tokenizer loaded."""
    repetition, quality, c4, fineweb = (
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(),
        FineWebQualityFilter(),
    )
    fineweb.filter(Document(text="It loads its tokenizer now.", id="0"))
    started = time.process_time()
    documents = 0

    def counted() -> Iterator[Document]:
        nonlocal documents
        for document in read(source):
            documents += 1
            yield document

    kept = sum(1 for _ in fineweb.run(c4.run(quality.run(repetition.run(counted())))))
    return {"documents": documents, "kept": kept, "seconds": time.process_time() - started}


def single_rules() -> dict[str, Callable[[Document], Any]]:
    """A filter for each rule, the others off, by filter and datatrove's name of the parameter."""
    found: dict[str, Callable[[Document], Any]] = {}
    for group, filter_class in FILTERS.items():
        defaults = {name: field.default for name, field in inspect.signature(filter_class).parameters.items()}
        for name in OFF[group]:
            if name in ("top_n_grams", "dup_n_grams"):
                for n, share in defaults[name]:
                    found[f"{group}.{name}_{n}"] = filter_class(**OFF[group] | {name: ((n, share),)}).filter
            elif name == "max_symbol_word_ratio":
                continue  # one parameter for two rules: see below
            else:
                found[f"{group}.{name}"] = filter_class(**OFF[group] | {name: defaults[name]}).filter
    symbols = GopherQualityFilter(**OFF["gopher_quality"] | {"max_symbol_word_ratio": 0.1}).filter
    for symbol, reason in (("#", "gopher_too_many_hashes"), ("...", "gopher_too_many_ellipsis")):
        found[f"gopher_quality.max_symbol_word_ratio_{symbol}"] = functools.partial(_symbol_alone, symbols, reason)
    return found


def _symbol_alone(symbols: Callable[[Document], Any], reason: str, document: Document) -> Any:
    """The hash and the ellipsis have one threshold: the ellipsis is judged on the text without hashes."""
    if reason == "gopher_too_many_ellipsis":
        document = Document(text=document.text.replace("#", "+"), id=document.id)
    verdict = symbols(document)
    return verdict is True or verdict[1] != reason


def decide(source: Path, out: Path) -> int:
    """A row a document: a column for each rule (kept, or null where datatrove raises), one for each filter's reason."""
    rules = single_rules()
    whole = {group: filter_class().filter for group, filter_class in FILTERS.items()}
    rows = []
    for document in read(source):
        row: dict[str, Any] = {"id": document.id, "text": document.text}
        for name, rule in [*rules.items(), *whole.items()]:
            verdict = _ask(rule, document)
            if name in whole:
                row[name] = verdict if verdict is None or isinstance(verdict, str) else ""
            else:
                row[name] = None if verdict == "raises" else verdict is True
        rows.append(row)
    out.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), out / "decisions.parquet")
    return len(rows)


def _ask(rule: Callable[[Document], Any], document: Document) -> Any:
    """True, the reason, or "raises"."""
    try:
        verdict = rule(Document(text=document.text, id=document.id))  # C4's changes the text
    except ZeroDivisionError:  # shares of a text without words or lines
        return "raises"
    return verdict[1] if isinstance(verdict, tuple) else bool(verdict)


def main() -> None:
    """Read the arguments, run, print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("chain", "decide"))
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--plain", action="store_true", help="split words and sentences by white space")
    arguments = parser.parse_args()
    logger.remove()
    if arguments.plain or arguments.task == "decide":
        use_plain_tokenizer()
    if arguments.task == "chain":
        print(json.dumps(chain(arguments.source)))
    else:
        print(json.dumps({"documents": decide(arguments.source, arguments.out)}))


if __name__ == "__main__":
    main()
