"""The defects of `python -m tests.mutants` can still be planted, are spread over all there is, and name their tests."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parent.parent
RULES = range(1, 11)  # of docs/design.md
LEAST = 60
# Of these every change of a stage's source is noticed, and every defect's text: they say nothing of a defect
ALWAYS = ("tests/tasks/stage/test_versions.py", "tests/test_mutants.py")


@functools.cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def wrong_with(mutant: Mutant) -> Iterator[str]:
    times = text_of(mutant.path).count(mutant.before)
    if times != 1 or mutant.before == mutant.after:
        yield f"its text stands {times} times in {mutant.path}, and must stand there once, to be replaced by another"
    if not mutant.fails:
        yield "it names no test"
    for test in mutant.fails:
        file, _, function = test.partition("::")
        if file in ALWAYS or not (ROOT / file).is_file():
            yield f"{file} is no file of tests that can notice it"
        elif function and f"\ndef {function}(" not in text_of(file):
            yield f"there is no {test}"


def test_each_can_be_planted_and_the_tests_that_it_names_are_there() -> None:
    assert [f"{mutant.name}: {wrong}" for mutant in MUTANTS for wrong in wrong_with(mutant)] == []


def test_names_are_names_and_each_is_of_one_defect() -> None:
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []
    assert [mutant.name for mutant in MUTANTS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", mutant.name)] == []
    assert len(MUTANTS) >= LEAST


def test_there_is_a_defect_in_every_folder_and_of_every_rule() -> None:
    folders = {f"tasks/{path.name}" for path in (ROOT / "tasks").iterdir() if (path / "__init__.py").is_file()}
    folders |= {"storage", "models", "flows", "profiles"}
    planted = {"/".join(Path(mutant.path).parts[: 2 if mutant.path.startswith("tasks/") else 1]) for mutant in MUTANTS}
    assert folders - planted == set()
    told = [re.match(r"rule (\d+): ", mutant.about) for mutant in MUTANTS]
    assert {int(found[1]) for found in told if found} == {*RULES}
