"""`python -m benchmarks.filter.unspaced zh=FILE.jsonl.gz …`: good and bad text in scripts without spaces, by the rules.

A file has good documents in a language (JSONL with a field `text`). Half of them, by a hash, say where each threshold
would keep all but one in two hundred. The other half says how many pass the rules' defaults with words cut at white
space, with letters as words, and with the thresholds of `unspaced.py`. Bad documents are made of the same half.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from benchmarks.filter.presets import lines_of, verdicts
from tasks.filter.config import FilterConfig
from tasks.filter.form.config import FormConfig
from tasks.filter.form.family import FAMILY as FORM
from tasks.filter.form.kernels import DUPLICATE, TOP
from tasks.filter.form.languages.unspaced import UNSPACED
from tasks.filter.form.measure import measure_form
from tasks.filter.form.words.plain import words_of
from tasks.filter.language.family import FAMILY as LANGUAGE

KEPT = 0.995
FITTED = (
    "mean_word_length",
    *(f"top_{n}gram_characters" for n in TOP),
    *(f"duplicate_{n}gram_characters" for n in DUPLICATE),
)
WHOLE = ("duplicate_lines", "duplicate_paragraphs")  # a document that repeats these is bad in any script


def halves(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The texts that thresholds are fitted on, and those that they are judged by."""
    parts: tuple[list[str], list[str]] = ([], [])
    for text in texts:
        parts[xxhash.xxh3_64_intdigest(text.encode()) % 2].append(text)
    return parts


def quantiles(texts: Sequence[str]) -> dict[str, float]:
    """Where a threshold would keep all but one in two hundred of the good documents."""
    signals = measure_form(FormConfig(), pa.array(texts, pa.string()))
    good = np.all([signals[name].to_numpy(zero_copy_only=False) <= 0.3 for name in WHOLE], axis=0)
    return {name: float(np.nanquantile(signals[name].to_numpy(zero_copy_only=False)[good], KEPT)) for name in FITTED}


def rules(language: str, **changed: Any) -> FilterConfig:
    """The default rules for documents in a language."""
    return FilterConfig.model_validate({"language": {"allowed": [language]}} | changed)


def without_own(language: str) -> FilterConfig:
    """The default rules with letters as words, but none of the language's own thresholds."""
    config = rules(language)
    return config.model_copy(update={"languages": {}, "form": config.form.model_copy(update={"stop_words_of": {}})})


def phrases(text: str, chance: random.Random) -> list[str]:
    """Scraps of a text of two to four words, as in a list of keywords."""
    words = words_of(text, True)
    starts = [chance.randrange(len(words)) for _ in range(150)]
    return ["".join(words[start : start + chance.randint(2, 4)]) for start in starts]


BAD: Mapping[str, Callable[[str, random.Random], str]] = {
    "a sentence again and again": lambda text, chance: text[:60].replace("\n", " ") * 20,
    "a phrase between others": lambda text, chance: "".join(part + text[:12] for part in phrases(text, chance)),
    "keywords by lines": lambda text, chance: "\n".join(phrases(text, chance)),
    "keywords by commas": lambda text, chance: "，".join(phrases(text, chance)),
    "keywords by bars": lambda text, chance: " | ".join(phrases(text, chance)),
    "a table of numbers": lambda text, chance: "\n".join(
        f"{part} {chance.random():.3f} {chance.randrange(10**6)} {chance.random():.3f}"
        for part in phrases(text, chance)
    ),
    "the text three times": lambda text, chance: "\n\n".join([text] * 3),
    "addresses": lambda text, chance: "\n".join(
        f"https://example.com/{chance.randrange(10**9)}?{part}" for part in phrases(text, chance)
    ),
}


def kept(config: FilterConfig, texts: Sequence[str], by_rule: dict[str, int] | None = None) -> float:
    """The share of texts that the rules of language and form keep."""
    found = verdicts(config, [LANGUAGE, FORM], texts)
    for verdict in found:
        if by_rule is not None and not verdict.startswith("kept"):
            by_rule[verdict] = by_rule.get(verdict, 0) + 1
    return sum(verdict.startswith("kept") for verdict in found) / len(found)


def main() -> None:
    """Read the files, fit, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="LANGUAGE=FILE.jsonl.gz")
    parser.add_argument("--removed", action="store_true", help="also say which rules removed good documents")
    options = parser.parse_args()
    given = [file.partition("=") for file in options.files]
    parted = {language: halves(list(lines_of(Path(path)))) for language, _, path in given}
    print(f"| signal | {' | '.join(parted)} |\n|---|{'---|' * len(parted)}")
    fitted = {language: quantiles(tuning) for language, (tuning, _) in parted.items()}
    for name in FITTED:
        print(f"| {name} | {' | '.join(f'{found[name]:.3f}' for found in fitted.values())} |")
    bad = " | ".join(BAD)
    print(f"\n| language | documents | kept, words by white space | letters | own thresholds | {bad} |")
    print(f"|---|---|---|---|---|{'---|' * len(BAD)}")
    for language, (_, judged) in parted.items():
        assert language in UNSPACED
        by_rule: dict[str, int] = {}
        shares = [
            kept(rules(language, form={"as_datatrove": True}), judged),
            kept(without_own(language), judged),
            kept(rules(language), judged, by_rule),
        ]
        chance = random.Random(0)
        shares += [kept(rules(language), [make(text, chance) for text in judged[:200]]) for make in BAD.values()]
        print(f"| {language} | {len(judged):,} | {' | '.join(f'{share:.1%}' for share in shares)} |")
        if options.removed:
            print(by_rule)


if __name__ == "__main__":
    main()
