"""Measurements of a vocabulary, for the Prefect UI and for report.md beside the tokenizer.

Merges look better on the text that they were learned from, so the table of bytes per token says which share of the
measured text that is.

Everything follows from the config and the documents, so report.md is reproducible. The comparison with other
vocabularies is in the tables only (compare.py says why).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from models.tokenizer import tokenizer_digest
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output
from tasks.tokenizer.bpe.train import Learnt
from tasks.tokenizer.compare import compare
from tasks.tokenizer.config import BYTE_TOKENS, TokenizerConfig
from tasks.tokenizer.patterns import PATTERNS
from tasks.tokenizer.sample import Sample
from tasks.tokenizer.words import Settled, commonest_words, show, tokens_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tasks.tokenizer.encoder.encode import KernelEncoder

REPORT = "report.md"
COMMON_WORDS = 100
LONGEST = COMMONEST = 20
LENGTHS = (*range(1, 17), 32, 64)  # shortest token of each row of the table of lengths, in bytes
FIRST, SPREAD, LAST = 30, 30, 10  # merges shown: the first, some evenly spaced, the last

Row = dict[str, Any]


@dataclass
class Measured:
    """UTF-8 bytes and tokens by source, and the total count of each id."""

    bytes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    ids: Counter[int] = field(default_factory=Counter)

    def bytes_per_token(self, source: str) -> float:
        """Bytes per token of one source."""
        return round(self.bytes[source] / self.tokens[source], 3)


def measure(encode: Callable[[str], Sequence[int]], texts: Mapping[str, list[str]]) -> Measured:
    """Encode the texts of each source and count."""
    measured = Measured()
    for source, given in texts.items():
        for text in given:
            ids = encode(text)
            measured.bytes[source] += len(text.encode())
            measured.tokens[source] += len(ids)
            measured.ids.update(ids)
    return measured


def publish(
    tokenizer: Tokenizer,
    encoder: KernelEncoder,
    config: TokenizerConfig,
    sample: Sample,
    learnt: Learnt,
    settled: Settled,
    out: Output,
) -> None:
    """Publish counts, tables and report.md."""
    size = tokenizer.get_vocab_size()
    if size < config.vocab_size:
        out.warn(f"the sample gave only {size:,} of {config.vocab_size:,} ids: no frequent pair was left to merge")
    measured = measure(encoder.ids, sample.measured)
    split, words = _words(tokenizer, sample)
    if split:
        small = (
            "the sample is too small for their pairs"
            if size < config.vocab_size
            else "the vocabulary is too small for them"
        )
        out.warn(f"{len(split)} of the {words} most frequent words are split: {small}")
    per_token = measured.bytes.total() / measured.tokens.total()
    out.count(
        vocab_size=size,
        vocabulary_used=len(measured.ids),
        sample_bytes=sum(sample.bytes.values()),
        bytes_per_token=round(per_token, 4),
        common_words={"asked": words, "one_token": words - len(split)},
        tokenizer_digest=tokenizer_digest(out.path),
        summary=f"{size:,} ids, {per_token:.2f} bytes a token",
    )
    pattern = PATTERNS[config.pattern]
    tables = {
        "Bytes per token": _sources(sample, measured),
        "Vocabulary": [
            _vocabulary(config, learnt, measured)
            | {
                "whole words above count": "" if settled.above is None else settled.above,
                "such words": settled.number,
                "frequent words that are single tokens": f"{words - len(split)} of {words}",
            }
        ],
        "Pre-tokenization": [{"pattern": config.pattern, "digits": pattern.digits, "white space": pattern.white_space}],
        "Frequent words split into several tokens": split,
        "Most frequent tokens in the measured text": _commonest(learnt, measured),
        "Longest tokens": _longest(learnt, measured),
        "Tokens by length": _lengths(config, learnt, measured),
        "Merges": _merges(learnt),
    }
    for title, rows in tables.items():
        out.table(title, rows)
    parts = [f"## {title}\n\n{markdown_table(rows)}\n" for title, rows in tables.items()]
    (out.path / REPORT).write_text("\n".join(["# Tokenizer report\n", *parts]), encoding="utf-8")
    if config.compare:
        _compare(measured, config, sample.measured, out)


def publish_comparison(
    tokenizer: Tokenizer, config: TokenizerConfig, texts: Mapping[str, list[str]], out: Output
) -> None:
    """Publish only the table of other vocabularies, for a tokenizer that was not trained here."""
    _compare(measure(lambda text: tokenizer.encode(text).ids, texts), config, texts, out)


def _compare(measured: Measured, config: TokenizerConfig, texts: Mapping[str, list[str]], out: Output) -> None:
    ours = {source: measured.bytes_per_token(source) for source in texts}
    out.table("Bytes per token beside other vocabularies", compare(config, texts, ours))


def _sources(sample: Sample, measured: Measured) -> list[Row]:
    rows = [
        {
            "source": source,
            "training bytes": sample.bytes[source],
            "measured bytes": measured.bytes[source],
            "of these, in training": sample.common[source],
            "bytes per token": measured.bytes_per_token(source),
        }
        for source in sample.measured
    ]
    total = {
        "source": "all",
        "training bytes": sum(sample.bytes.values()),
        "measured bytes": measured.bytes.total(),
        "of these, in training": sum(sample.common.values()),
        "bytes per token": round(measured.bytes.total() / measured.tokens.total(), 3),
    }
    return [*rows, total]


def _vocabulary(config: TokenizerConfig, learnt: Learnt, measured: Measured) -> Row:
    special, size = len(config.special_tokens), len(learnt.vocabulary)
    return {
        "ids": size,
        "special tokens": special,
        "of these, reserved": config.reserved_tokens,
        "bytes": BYTE_TOKENS,
        "merges": len(learnt.merges),
        "count of the last merge": int(learnt.counts[-1]) if len(learnt.counts) else "",
        "used in the measured text": f"{len(measured.ids) / (size - special):.1%}",
    }


def _words(tokenizer: Tokenizer, sample: Sample) -> tuple[list[Row], int]:
    """The most frequent words that are split, and the number of words examined."""
    words = commonest_words(sample.pretokens, COMMON_WORDS)
    pieces = [tokens_of(tokenizer, seen.pretoken) for seen in words]
    rows = [
        {"rank": place, "word": show(seen.pretoken), "count": seen.times, "tokens": " ".join(map(show, tokens))}
        for place, (seen, tokens) in enumerate(zip(words, pieces, strict=True), 1)
        if len(tokens) > 1
    ]
    return rows, len(words)


def _commonest(learnt: Learnt, measured: Measured) -> list[Row]:
    total = measured.ids.total()
    ordered = sorted(measured.ids.items(), key=lambda pair: (-pair[1], pair[0]))
    return [
        {"token": show(learnt.vocabulary[number]), "id": number, "count": times, "share": f"{times / total:.2%}"}
        for number, times in ordered[:COMMONEST]
    ]


def _longest(learnt: Learnt, measured: Measured) -> list[Row]:
    first = len(learnt.vocabulary) - len(learnt.merges)
    ordered = sorted(range(first, len(learnt.vocabulary)), key=lambda number: (-len(learnt.vocabulary[number]), number))
    return [
        {
            "token": show(learnt.vocabulary[number]),
            "bytes": len(learnt.vocabulary[number]),
            "id": number,
            "count in the measured text": measured.ids[number],
        }
        for number in ordered[:LONGEST]
    ]


def _lengths(config: TokenizerConfig, learnt: Learnt, measured: Measured) -> list[Row]:
    special = len(config.special_tokens)
    lengths = np.array([len(token) for token in learnt.vocabulary])[special:]
    times = np.array([measured.ids[number] for number in range(special, len(learnt.vocabulary))])
    rows = []
    for begin, end in zip(LENGTHS, [*LENGTHS[1:], None], strict=True):
        chosen = (lengths >= begin) & (lengths < (end or np.inf))
        if chosen.any():
            label = f"{begin} or more" if end is None else f"{begin}" if end == begin + 1 else f"{begin} to {end - 1}"
            share, of_text = chosen.mean(), times[chosen].sum() / times.sum()
            rows.append(
                {
                    "bytes": label,
                    "tokens": int(chosen.sum()),
                    "of the vocabulary": f"{share:.1%}",
                    "of the tokens in the measured text": f"{of_text:.1%}",
                }
            )
    return rows


def _merges(learnt: Learnt) -> list[Row]:
    """The first merges, the last, and some evenly spaced between them."""
    number = len(learnt.merges)
    between = (
        np.linspace(FIRST, number - LAST - 1, SPREAD).round().astype(int).tolist() if number > FIRST + LAST else []
    )
    chosen = sorted({*range(min(FIRST, number)), *between, *range(max(0, number - LAST), number)})
    return [
        {
            "merge": rank + 1,
            "left": show(learnt.vocabulary[left]),
            "right": show(learnt.vocabulary[right]),
            "count": int(learnt.counts[rank]),
        }
        for rank, (left, right) in ((rank, learnt.merges[rank].tolist()) for rank in chosen)
    ]
