"""Sums with one right answer: a small model learns some by SFT, and more by GRPO."""

from __future__ import annotations

from pathlib import Path

from storage.artifact import Artifact
from tests.tasks.tiny_model import write_rows

QUESTIONS = ("{}+{}", "{} plus {}", "add {} and {}", "sum of {} and {}")


def make_sums(folder: Path, below: int = 10) -> Artifact:
    """The sums of all a and b below a number, asked for in four ways, with the sum as the answer."""
    rows = [
        {
            "id": question.format(a, b),
            "source": "test",
            "messages": [
                {"role": "user", "content": question.format(a, b)},
                {"role": "assistant", "content": str(a + b)},
            ],
        }
        for a in range(below)
        for b in range(below)
        for question in QUESTIONS
    ]
    return Artifact.at(write_rows(folder / "all.jsonl", rows))
