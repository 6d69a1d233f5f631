"""Contamination as a filter family. It also passes the benchmark questions on to evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pydantic import Field

from storage.artifact import Artifact
from storage.shards.lines import read_json_lines, write_json_lines
from tasks.filter.contamination.config import PHRASES, QUESTIONS, SHOWN, ContaminationConfig
from tasks.filter.contamination.stage import contamination_signals
from tasks.filter.family import Family, measuring_half
from tasks.filter.rules import Rule, Section, bounds
from tasks.stage.output import Output


class ContaminationRules(Section):
    """The limit on n-grams of the benchmarks in the training text (Brown et al. 2020, appendix C)."""

    measure: ContaminationConfig = Field(
        default_factory=ContaminationConfig, description="how contamination is measured"
    )
    max_ngrams: int | None = Field(
        0,
        ge=0,
        description="maximum n-grams that a document may share with benchmarks. Null removes nothing, and evaluation "
        "then scores clean and contaminated questions separately",
    )


def _rules(contamination: ContaminationRules | None) -> Iterable[Rule]:
    return bounds("contamination", contamination, "contamination_")


def keep_questions(contamination: ContaminationRules, measured: Artifact, out: Output) -> None:
    """Write contamination/questions.jsonl: how much of each benchmark question is in the kept text.

    If any shared n-gram removes a document, that is nothing. Otherwise the counts are from before the other rules.
    """
    rows = list(read_json_lines(measured.path / QUESTIONS))
    if contamination.max_ngrams == 0:
        rows = [row | {"found": 0, "documents": 0} for row in rows]
    write_json_lines(out.path / "contamination" / QUESTIONS, rows)
    if common := [*islice(read_json_lines(measured.path / PHRASES), SHOWN)]:
        out.table("Common phrases of benchmarks, which remove nothing", common)


FAMILY = Family(
    ("contamination",), contamination_signals, measuring_half, _rules, reads_benchmarks=True, finish=keep_questions
)
