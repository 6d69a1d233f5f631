"""Renders rows of JSON Lines files for training and validation, and counts the dropped ones by reason."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from models.conversation import NOT_A_PREFIX, REFUSED
from storage.errors import EmptyOutput, SourceError
from storage.shards.lines import read_json_lines
from tasks.posttrain.rows.form import OVERLONG, Dropped, Row
from tasks.posttrain.rows.same_rows import digest_as_compared

REMEDIES = {  # by the most frequent reason
    OVERLONG: "Raise max_length (and the model's context), or provide shorter pairs",
    REFUSED: "Provide pairs that the chat template accepts (some allow no system prompt), or correct the template",
    NOT_A_PREFIX: "Correct the chat template, so that it renders the same prompt with and without the answer",
    "special_token_in_text": "Remove the special tokens from the texts",
}
WORDS = {
    "exact_duplicate": "duplicates",
    "near_duplicate": "near-duplicates",
    "special_token_in_text": "with special tokens",
}
MANY = 0.1  # share of all pairs from which a run warns about dropped ones
LENGTHS = [2**power for power in range(7, 21)]  # usual contexts


def read_rows(paths: Iterable[Path]) -> Iterator[Row]:
    """The rows of JSON Lines files, in order. Raises SourceError for a line that is not JSON."""
    for path in paths:
        try:
            yield from read_json_lines(path)
        except ValueError as error:
            raise SourceError(f"{path.name} is not JSON: {error}.", "Rebuild the artifact that holds it.") from error


def prepare(
    rows: Iterable[Row],
    render: Callable[[Row, int], Row | list[Row]],
    max_length: int,
    *,
    validation_share: float,
    max_dropped_share: float,
    what: str = "pairs",
    split: Counter[str] | None = None,
) -> tuple[list[Row], list[Row], Counter[str]]:
    """Rendered rows for training and for validation, and the number dropped by reason. `render(row, length)` raises
    Dropped for an unusable row, such as one of more tokens. If it gives several, `split` counts the row and its parts.

    Raises EmptyOutput if none is left to train on, or if more than the allowed share was dropped, and says how many
    rows would fit into which length.
    """
    train: list[Row] = []
    validation: list[Row] = []
    overlong: list[Row] = []
    dropped: Counter[str] = Counter()
    rows_kept = 0
    rows = list(rows)
    side = _first_of_prompts(rows)
    for row in rows:
        try:
            rendered = render(row, max_length)
        except Dropped as reason:
            dropped[str(reason)] += 1
            if str(reason) == OVERLONG:
                overlong.append(row)
            continue
        parts = rendered if isinstance(rendered, list) else [rendered]
        if len(parts) > 1 and split is not None:
            split.update(rows=1, parts=len(parts))
        (validation if is_held_out(side[_prompt_of(row)], validation_share) else train).extend(parts)
        rows_kept += 1
    total = rows_kept + dropped.total()
    if not total:
        raise EmptyOutput(
            f"No {what} to train on.",
            "Give download a source of that role, or raise n of a best_of_n that makes them, or lower its threshold "
            "and gap.",
        )
    if validation and not train and not dropped:
        raise EmptyOutput(
            f"All of {total:,} {what} are held out, by the hash of their ids.", "Lower validation_share, or add more."
        )
    if not train or dropped.total() > max_dropped_share * total:
        more = _would_fit(overlong, render, rows_kept)
        raise EmptyOutput(
            f"{dropped.total():,} of {total:,} {what} can't be used ({by_reason(dropped)}): {len(train):,} are left."
            f"{more}",
            f"{_remedy(dropped)}, or raise max_dropped_share.",
        )
    return train, validation, dropped


def by_reason(dropped: Counter[str]) -> str:
    """The number for each reason, in words, the largest first."""
    return ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in dropped.most_common())


def reasons_for_dropping(dropped: Counter[str], max_length: int) -> list[str]:
    """Each reason with its number, such as `47 longer than 128 tokens`."""
    words = {**WORDS, OVERLONG: f"longer than {max_length:,} tokens"}
    return [f"{number:,} {words.get(reason, reason.replace('_', ' '))}" for reason, number in dropped.most_common()]


def warning_of(dropped: Counter[str], pairs: int, max_length: int) -> str:
    """A warning if many pairs are dropped, else "". Duplicates don't count, as nothing is lost with them."""
    lost = Counter({reason: number for reason, number in dropped.items() if not reason.endswith("_duplicate")})
    if lost.total() < MANY * pairs:
        return ""
    reasons = ", ".join(reasons_for_dropping(lost, max_length))
    return f"{lost.total():,} of {pairs:,} pairs can't be used: {reasons}. {_remedy(lost)}."


def _first_of_prompts(rows: Iterable[Row]) -> dict[bytes, str]:
    """The smallest id of the rows with each prompt. It decides for all of them whether they are held out: a prompt that
    was trained on can't measure what was learned."""
    first: dict[bytes, str] = {}
    for row in rows:
        prompt = _prompt_of(row)
        first[prompt] = min(row["id"], first.get(prompt, row["id"]))
    return first


def _prompt_of(row: Row) -> bytes:
    """A digest of the prompt: of all messages before the last answer of a conversation, or before both of a pair."""
    return digest_as_compared(row["prompt"] if "prompt" in row else row["messages"][:-1])


def _remedy(dropped: Counter[str]) -> str:
    reasons = dropped.most_common(1)
    return REMEDIES.get(reasons[0][0], "Correct these pairs") if reasons else "Provide more pairs"


def _would_fit(overlong: Iterable[Row], render: Callable[[Row, int], Row | list[Row]], fit: int) -> str:
    """How many rows would fit into each usual context, left out where a longer one fits no more."""
    enough = Counter(_length_for(row, render) for row in overlong)
    fits: list[str] = []
    for length in LENGTHS:
        if enough[length]:
            fit += enough[length]
            fits.append(f"{fit:,} into {length:,}" if fits else f"{fit:,} would fit into {length:,} tokens")
    return f" {', '.join(fits)}." if fits else ""


def _length_for(row: Row, render: Callable[[Row, int], Row | list[Row]]) -> int | None:
    for length in LENGTHS:
        try:
            render(row, length)
        except Dropped:
            continue
        return length
    return None


def is_held_out(row_id: str, share: float) -> bool:
    """Whether a row is in the share that is held out. A larger share holds out the same rows and more."""
    drawn = hashlib.sha256(f"pair {row_id}".encode()).digest()
    return int.from_bytes(drawn[:8]) < share * 2.0**64
