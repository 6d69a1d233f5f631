"""Speculative decoding with a release: how many guesses are right, how much faster it is, and that no text changes.

Guesses can't change greedy text except where the model finds two tokens equally likely, because a pass over several
tokens rounds differently from one over a single token. Any other difference is a defect of the runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import ParityError
from tasks.export.config import SpeculationConfig
from tasks.export.formats import GUESSED
from tasks.export.formats.format import GuessedFormat
from tasks.export.formats.source import DRAFT, Source
from tasks.export.proof.reference import Reference

if TYPE_CHECKING:
    from models.runtimes.speculative import Continued, Guessing, Speculative

NGRAMS = "n-grams"
Request = tuple[Sequence[int], int]  # a prompt, and how many tokens may follow


@dataclass(frozen=True)
class GuessCounts:
    """The success of one kind of guesses with one format."""

    prompts: int
    tokens: int  # written
    guessed: int
    accepted: int
    ties: int  # prompts whose texts diverge where two tokens are equally likely


def write_draft(draft: Path, source: Source, formats: Sequence[str], release: Path) -> None:
    """Write a draft into a release, in a format for each runtime that takes one and in the dtype of the release."""
    (release / DRAFT).mkdir()
    written = Source(draft, name=source.name and f"{source.name} draft", licence=source.licence, dtype=source.dtype)
    for name in formats:
        GUESSED[name].write_draft(written, release)


def speculation(
    reference: Reference, formats: Sequence[str], release: Path, threads: int, config: SpeculationConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Counts, and seconds without guesses and with them, by format and kind of guesses. Raises ParityError if guesses
    change a text."""
    from models.runtimes.speculative import Guessing

    prompts = list(_requests(reference, config))
    counts: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    for name in formats:
        known = GUESSED[name]
        kinds = {NGRAMS: Guessing(config.guesses, ngram=config.ngram)}
        if (draft := known.draft(release)).exists():
            kinds = {DRAFT: Guessing(config.guesses, draft=draft), **kinds}
        plain, tie = known.speculative(release, threads, reference.device, None), reference.config.tie
        try:
            expected = [plain.continued(*request) for request in prompts]
            for kind, guessing in kinds.items():
                guessed = _continuations(known, release, threads, reference.device, guessing, prompts)
                ties = _ties(name, plain, prompts, expected, guessed, tie)
                counts.setdefault(name, {})[kind] = asdict(_counts(guessed, ties))
                seconds.setdefault(name, {})[kind] = [
                    round(sum(one.seconds for one in side), 3) for side in (expected, guessed)
                ]
        finally:
            plain.close()
    return counts, seconds


def _requests(reference: Reference, config: SpeculationConfig) -> Iterator[Request]:
    """Prompts and conversations that leave room in the context, including for guesses at its end."""
    for prompt in (*reference.prompts, *(ids for _, ids in reference.chats)):
        room = reference.runtime.context - len(prompt) - config.guesses
        if room > 0:
            yield prompt, min(config.tokens, room)


def _continuations(
    known: GuessedFormat, release: Path, threads: int, device: str, guessing: Guessing, prompts: Sequence[Request]
) -> list[Continued]:
    opened = known.speculative(release, threads, device, guessing)
    try:
        return [opened.continued(*request) for request in prompts]
    finally:
        opened.close()


def _counts(texts: Sequence[Continued], ties: int) -> GuessCounts:
    return GuessCounts(
        prompts=len(texts),
        tokens=sum(one.tokens for one in texts),
        guessed=sum(one.guessed for one in texts),
        accepted=sum(one.accepted for one in texts),
        ties=ties,
    )


def _ties(
    name: str,
    plain: Speculative,
    prompts: Sequence[Request],
    expected: Sequence[Continued],
    guessed: Sequence[Continued],
    tie: float,
) -> int:
    """The number of texts that diverge at a tie. Raises ParityError for a text that diverges elsewhere."""
    ties = 0
    for (prompt, _), one, other in zip(prompts, expected, guessed, strict=True):
        if one.ids == other.ids:
            continue
        pairs = enumerate(zip(one.ids, other.ids, strict=False))
        place = next((place for place, (a, b) in pairs if a != b), min(len(one.ids), len(other.ids)))
        best, second = sorted(plain.log_probabilities([*prompt, *one.ids[:place]]))[-1:-3:-1]
        if best - second > tie:
            raise ParityError(
                f"Speculative decoding with {name} changes the text.",
                "Set export.speculation and draft to null. This is a defect of its runtime or of Gristmill: report it.",
            )
        ties += 1
    return ties
