"""Source code as a filter family: its rules apply only to code, where they replace the rules for prose."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.shards.arrays import Bool
from tasks.filter.code.rules import CodeRules
from tasks.filter.code.stage import code_signals
from tasks.filter.family import Family, Spared, measuring_half
from tasks.filter.rules import Bound, Member, Rule, Tested, Turn, Where

LANGUAGE, GENERATED, LICENCE = "code_language", "code_generated", "code_licence"  # signals


@dataclass(frozen=True)
class Named:
    """A document passes when a signal is "" or one of `allowed`. The ledger shows the signal."""

    name: str
    signal: str
    allowed: tuple[str, ...] = ()
    threshold: float | None = None
    turn: Turn = Turn.USUAL

    def test(self, signals: pa.RecordBatch) -> Tested:
        """See `Rule`."""
        passing = pc.is_in(signals[self.signal], pa.array(["", *self.allowed], pa.string()))
        fails = ~passing.to_numpy(zero_copy_only=False)
        return Tested(fails, np.zeros(len(fails), np.bool_), fails.astype(np.float64))

    def details(self, signals: pa.RecordBatch) -> pa.Array:
        """The signal itself."""
        return signals[self.signal]


def is_code(signals: pa.RecordBatch) -> Bool:
    """Mark the documents that are source code."""
    found: Bool = signals[LANGUAGE].is_valid().to_numpy(zero_copy_only=False)
    return found


def _written_in(languages: Sequence[str], inside: bool, signals: pa.RecordBatch) -> Bool:
    """Mark the documents that are code in one of these languages or, unless `inside`, in any other."""
    member: Bool = pc.is_in(signals[LANGUAGE], pa.array(languages, pa.string())).to_numpy(zero_copy_only=False)
    return is_code(signals) & (member if inside else ~member)


def _rules(code: CodeRules | None) -> Iterator[Rule]:
    if code is None:
        return
    if code.languages is not None:
        allowed = Member("code.languages", LANGUAGE, tuple(code.languages), "code_mean_line")
        yield Where(allowed, is_code)
    if not code.generated:
        yield Where(Named("code.generated", GENERATED), is_code)
    if code.licences is not None:
        yield Where(Named("code.licences", LICENCE, tuple(code.licences)), is_code)
    long_lines = functools.partial(_written_in, code.long_line_languages)
    numeric = functools.partial(_written_in, code.numeric_languages)
    commented = functools.partial(_written_in, code.comment_languages, True)
    pages = functools.partial(_written_in, ["HTML"], True)
    for field, signal, chosen in (
        ("max_lines", "lines", is_code),
        ("max_data_lines", "lines", functools.partial(_written_in, code.data_languages, True)),
        ("max_longest_line", "longest_line", functools.partial(long_lines, False)),
        ("max_longest_line_of_text", "longest_line", functools.partial(long_lines, True)),
        ("max_mean_line", "mean_line", functools.partial(long_lines, False)),
        ("min_alphanumeric", "alphanumeric", is_code),
        ("min_alphabetic", "alphabetic", functools.partial(numeric, False)),
        ("max_longest_encoded", "longest_encoded", is_code),
        ("max_encoded", "encoded", is_code),
        ("max_numbers", "numbers", is_code),
        ("min_comments", "comments", commented),
        ("max_comments", "comments", commented),
        ("min_visible_characters", "visible_characters", pages),
        ("min_visible", "visible", pages),
    ):
        threshold = getattr(code, field)
        if threshold is not None:
            yield Where(Bound(f"code.{field}", f"code_{signal}", field[:3], float(threshold)), chosen)


def _spares(code: CodeRules | None) -> Spared | None:
    return None if code is None else Spared(tuple(code.instead_of), is_code)


FAMILY = Family(("code",), code_signals, measuring_half, _rules, spares=_spares)
