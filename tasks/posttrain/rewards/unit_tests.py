"""The reward of programs: those in answers are run with the tests of their rows, in the sandbox of the evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from storage.errors import ConfigError
from tasks.posttrain.rewards.config import ProgramReward
from tasks.posttrain.rewards.score import Answer, Value
from tasks.sandbox import Program, Sandbox

FENCE = re.compile(r"^ *(```+|~~~+)[^\n]*\n(.*?)(?:^ *\1`*~* *$|\Z)", re.MULTILINE | re.DOTALL)


class PassedTests:
    """Answers → whether their programs pass, or the share of tests that they pass. None for a row without tests."""

    def __init__(self, config: ProgramReward) -> None:
        self.config = config
        self.sandbox = Sandbox(config.sandbox)

    def __call__(self, answers: Sequence[Answer]) -> Sequence[Value]:
        """The reward of each answer. Raises LostWorker when a worker of the sandbox was killed."""
        tests = [sources_of(self.config, answer.fields) for answer in answers]
        programs = [
            Program(program_in(answer.text), test) for answer, each in zip(answers, tests, strict=True) for test in each
        ]
        passed = iter([outcome.passed for outcome in self.sandbox.run(programs)])
        return [sum(next(passed) for _ in each) / len(each) if each else None for each in tests]


def program_in(answer: str) -> str:
    """The last fenced block of an answer, which may end with it, or the whole answer if it has none."""
    blocks = FENCE.findall(answer)
    return blocks[-1][1] if blocks else answer


def sources_of(config: ProgramReward, fields: Any) -> list[str]:
    """The tests of a row, as sources that each run with the program. Raises ConfigError for anything but texts."""
    given = fields.get(config.field)
    tests = [given] if isinstance(given, str) else given or []
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise ConfigError(
            f"The field {config.field} of a row is neither a text nor a list of texts: {str(given)[:80]}.",
            "Give the source of its tests, such as `assert add(1, 2) == 3`.",
        )
    tests = [test for test in tests if test.strip()]  # an empty one would be passed by anything
    return ["\n".join(tests)] if tests and config.credit == "all" else tests
