"""Speculative decoding with a release: how many guesses are right, how much faster it is, and that no text changes.

What is guessed can't change greedy text but where the model finds two tokens equally likely: a pass over several tokens
rounds otherwise than one over a single token. Any other difference is a defect of the runtime.
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
Asked = tuple[Sequence[int], int]  # a prompt, and how many tokens may follow


@dataclass(frozen=True)
class Speculated:
    """What one kind of guesses was worth to one format."""

    prompts: int
    tokens: int  # that were written
    guessed: int
    accepted: int
    ties: int  # prompts whose texts part where two tokens are equally likely


def write_draft(draft: Path, source: Source, formats: Sequence[str], release: Path) -> None:
    """Write a draft into a release, in a format for each runtime that takes one, in the dtype of the release."""
    (release / DRAFT).mkdir()
    written = Source(draft, name=source.name and f"{source.name} draft", licence=source.licence, dtype=source.dtype)
    for name in formats:
        GUESSED[name].write_draft(written, release)


def speculation(
    reference: Reference, formats: Sequence[str], release: Path, threads: int, config: SpeculationConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Counts, and seconds without guesses and with them, by format and kind of guesses. Raises ParityError for a text
    that guesses change."""
    from models.runtimes.speculative import Guessing

    prompts = list(_asked(reference, config))
    counts: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    for name in formats:
        known = GUESSED[name]
        kinds = {NGRAMS: Guessing(config.guesses, ngram=config.ngram)}
        if (draft := known.draft(release)).exists():
            kinds = {DRAFT: Guessing(config.guesses, draft=draft), **kinds}
        plain, tied = known.speculative(release, threads, reference.device, None), reference.config.tie
        try:
            expected = [plain.continued(*asked) for asked in prompts]
            for kind, guessing in kinds.items():
                found = _continued(known, release, threads, reference.device, guessing, prompts)
                ties = _ties(name, plain, prompts, expected, found, tied)
                counts.setdefault(name, {})[kind] = asdict(_counted(found, ties))
                seconds.setdefault(name, {})[kind] = [
                    round(sum(one.seconds for one in side), 3) for side in (expected, found)
                ]
        finally:
            plain.close()
    return counts, seconds


def _asked(reference: Reference, config: SpeculationConfig) -> Iterator[Asked]:
    """Prompts and conversations that leave room in the context, for guesses at the end of it too."""
    for prompt in (*reference.prompts, *(ids for _, ids in reference.chats)):
        room = reference.runtime.context - len(prompt) - config.guesses
        if room > 0:
            yield prompt, min(config.tokens, room)


def _continued(
    known: GuessedFormat, release: Path, threads: int, device: str, guessing: Guessing, prompts: Sequence[Asked]
) -> list[Continued]:
    opened = known.speculative(release, threads, device, guessing)
    try:
        return [opened.continued(*asked) for asked in prompts]
    finally:
        opened.close()


def _counted(found: Sequence[Continued], ties: int) -> Speculated:
    return Speculated(
        prompts=len(found),
        tokens=sum(one.tokens for one in found),
        guessed=sum(one.guessed for one in found),
        accepted=sum(one.accepted for one in found),
        ties=ties,
    )


def _ties(
    name: str,
    plain: Speculative,
    prompts: Sequence[Asked],
    expected: Sequence[Continued],
    found: Sequence[Continued],
    tie: float,
) -> int:
    """How many texts part at a tie. Raises ParityError for one that parts elsewhere."""
    ties = 0
    for (prompt, _), one, other in zip(prompts, expected, found, strict=True):
        if one.ids == other.ids:
            continue
        pairs = enumerate(zip(one.ids, other.ids, strict=False))
        place = next((place for place, (a, b) in pairs if a != b), min(len(one.ids), len(other.ids)))
        best, second = sorted(plain.log_probabilities([*prompt, *one.ids[:place]]))[-1:-3:-1]
        if best - second > tie:
            raise ParityError(
                f"Speculative decoding with {name} writes another text than without.",
                "Set export.speculation and draft to null; this is a defect of its runtime or of ours, report it.",
            )
        ties += 1
    return ties
