"""Questions of the benchmarks: the same, however few are asked for, and every document of the package is one."""

from __future__ import annotations

import gzip
import json

import pytest

from tasks.download import benchmarks

ALL = 1_000_000


@pytest.mark.parametrize("name", benchmarks.READERS)
def test_few_questions_are_the_first_of_all(name: str) -> None:
    every = benchmarks.questions(name, ALL)
    assert benchmarks.questions(name, 7) == every[:7]
    assert len({question["id"] for question in every}) == len(every)
    assert all(0 <= question["gold"] < len(question["choices"]) for question in every)


def test_a_skills_documents_are_those_that_json_reads_line_by_line() -> None:
    expected = {}
    for skill in benchmarks.SKILLS:
        path = benchmarks._file(f"oe_eval_tasks/basic_skills_{skill}/rc_5shot/requests.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for document in (json.loads(line)["doc"] for line in lines):
                expected[f"{skill}/{document['id']}"] = document["question"], document["choices"], document["gold"]
    found = {
        question["id"]: (question["query"], [choice[1:] for choice in question["choices"]], question["gold"])
        for question in benchmarks.questions("basic_skills", ALL)
    }
    assert found == expected
