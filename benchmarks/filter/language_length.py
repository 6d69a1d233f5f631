"""`python -m benchmarks.filter.language_length FOLDER`: language identification by length of text.

FOLDER holds langid_lingua (single sentences, where settings were chosen) and langid_udhr (the Universal Declaration of
Human Rights, which is reported): its text is cut at blanks into pieces of so many characters, at most `--pieces` of
each language. Fractions are of pieces in the languages that the data, lid.176 and lingua share; the second opinion
needs the extra `lingua`. Pieces of `RENDERED` characters also stand in capitals, among addresses of pages, and with
every fourth word in a tag. lingua's own test sentences are its training's neighbours, so its figure there flatters it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.filter.language import declaration, sentences

LENGTHS = (30, 60, 120, 300, 1000, 3000)
RENDERED = (120, 300)
Pair = tuple[str, str]  # language, text


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of `size` characters, cut at a blank where there is one; a shorter rest is left out."""
    at = 0
    text = " ".join(text.split())
    while at + size <= len(text):
        end = text.rfind(" ", at, at + size + 1)
        end = at + size if end <= at else end
        yield text[at:end].strip()
        at = end


def cut(documents: list[Pair], size: int, most: int) -> list[Pair]:
    """Labelled pieces, at most so many of a language."""
    found: dict[str, list[str]] = {}
    for code, text in documents:
        found.setdefault(code, []).extend(pieces(text, size))
    return [
        (code, piece) for code, each in sorted(found.items()) for piece in each[:: max(1, len(each) // most)][:most]
    ]


def linked(text: str) -> str:
    """With an address behind every fifth word."""
    words = text.split(" ")
    return " ".join(
        f"{word} https://www.example.org/{n}/page?id={n * 7919:x}" if n % 5 == 4 else word
        for n, word in enumerate(words)
    )


def tagged(text: str) -> str:
    """With every fourth word in a tag."""
    return " ".join(
        f'<span class="w{n}">{word}</span>' if n % 4 == 0 else word for n, word in enumerate(text.split(" "))
    )


RENDERINGS: dict[str, Callable[[str], str]] = {"capitals": str.upper, "addresses": linked, "tags": tagged}


def row(name: str, pairs: list[Pair]) -> None:
    """A line of the table."""
    from tasks.filter.language.config import LanguageConfig
    from tasks.filter.language.measure import measure_language

    texts = pa.array([text for _, text in pairs], pa.string())
    signals = measure_language(LanguageConfig(second="lingua", second_characters=5000), texts).to_pylist()
    right = [signal["language"] == code for (code, _), signal in zip(pairs, signals, strict=True)]
    second = [signal["language_second"] == code for (code, _), signal in zip(pairs, signals, strict=True)]
    agree = [signal["language"] == signal["language_second"] for signal in signals]
    sure = [(signal["language_score"] or 0) >= 0.65 for signal in signals]
    both = [hit for hit, same in zip(right, agree, strict=True) if same]
    above = [hit for hit, is_sure in zip(right, sure, strict=True) if is_sure]
    called = [(code, same) for (code, _), s, same in zip(pairs, signals, agree, strict=True) if s["language"] == "en"]
    english = sum(code == "en" for code, _ in called)
    agreed = [code for code, same in called if same]
    wanted = sum(code == "en" for code, _ in pairs)
    print(
        f"| {name} | {len(pairs):,} | {mean(right):.3f} | {mean(second):.3f} | {mean(agree):.3f} | {mean(both):.4f} "
        f"| {mean(sure):.3f} | {mean(above):.4f} | {english} of {wanted}, {len(called) - english} others "
        f"| {agreed.count('en')} of {wanted}, {len(agreed) - agreed.count('en')} others |"
    )


def mean(values: list[bool]) -> float:
    """The share of true values."""
    return sum(values) / max(1, len(values))


def main() -> None:
    """Read the options, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with langid_udhr and langid_lingua")
    parser.add_argument("--pieces", type=int, default=20, help="pieces of each language and length")
    options = parser.parse_args()
    from tasks.filter.language.identify import identifier
    from tasks.filter.language.second import known_languages

    known = set(identifier().labels) & known_languages()
    documents = [pair for pair in declaration(options.folder) if pair[0] in known]
    single = [pair for pair in sentences(options.folder) if pair[0] in known]
    print(f"{len({code for code, _ in documents})} languages of the Declaration\n")
    print(
        "| text | pieces | lid.176 right | lingua right | agree | right where they agree | score ≥ 0.65 | right there "
        "| called English | and lingua too |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    row("sentences", single)
    for size in LENGTHS:
        row(f"Declaration, {size:,}", cut(documents, size, options.pieces))
    for size in RENDERED:
        for name, render in RENDERINGS.items():
            pairs = [(code, render(text)) for code, text in cut(documents, size, options.pieces)]
            row(f"Declaration, {size:,}, {name}", pairs)


if __name__ == "__main__":
    main()
