"""The tutorials: the commands of each page, in their order, with the page's profiles made small."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT, blocks, commands
from tests.tasks.tiny_model import ANIMALS, PLACES, answer, make_model, question, texts, write_rows

TEXT: dict[str, Any] = {
    "tokenizer": {"vocab_size": 600},
    "tokenize": {"validation_share": 0.2},
    "pretrain": {"steps": 4, "warmup_steps": 1, "validation_every": 4, "global_batch": 2, "model": {"depth": 1}},
    "export": {"positions": 256},
}
PAIRS: dict[str, Any] = {
    "download": {"benchmarks": ["arc_easy"], "benchmark_items": 5},
    "base": {"package": None, "gguf": None, "folder": "base"},
    "sft": {"epochs": 0.2, "validation_share": 0.2},
    "export": {"positions": 256, "greedy_tokens": 8},
}


def merged(given: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """A profile with some keys replaced, at any depth."""
    both = [key for key in small if isinstance(small[key], Mapping) and isinstance(given.get(key), Mapping)]
    return {**given, **small, **{key: merged(given[key], small[key]) for key in both}}


def follow(page: str, folder: Path, small: Mapping[str, Any]) -> dict[str, str]:
    """Do what a page says in a folder: what each of its commands printed."""
    for block in blocks("yaml", "yml"):
        if block.page.name == page:
            file = folder / block.text.splitlines()[0].removeprefix("# ")
            file.parent.mkdir(exist_ok=True)
            given = yaml.safe_load(block.text)
            file.write_text(yaml.safe_dump(merged(given, small) if block.kind == "yaml" else given))
    said = {}
    for command in commands("gristmill"):
        if command.block.page.name == page:
            done = subprocess.run(
                [sys.executable, "-m", "flows.cli", *command.words[1:]],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"},
                capture_output=True,
                text=True,
            )
            said[" ".join(command.words[1:])] = done.stdout
            assert done.returncode == (1 if command.block.needs == "a gate that fails" else 0), (
                f"{command.name}: {done.stdout}{done.stderr}"
            )
    return said


def test_my_text_becomes_a_model(tmp_path: Path) -> None:
    (tmp_path / "text" / "animals").mkdir(parents=True)
    all_of_them = "\n".join(texts())
    for number, text in enumerate([*texts(), all_of_them, f"{all_of_them}\nThe end."]):  # the last two: near-duplicates
        (tmp_path / "text" / "animals" / f"{number}.md").write_text(text)
    follow("my-text-to-a-model.md", tmp_path, TEXT)
    assert (tmp_path / "my-model" / "gguf" / "model-q8_0.gguf").is_file()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which somebody has followed the page on pairs."""
    folder = tmp_path_factory.mktemp("tuned")
    make_model(folder / "base")
    rows = [
        {"instruction": question(animal, number)[0]["content"], "input": "", "output": answer(place)["content"]}
        for animal in ANIMALS[:8]
        for number, place in enumerate(PLACES)
    ]
    write_rows(folder / "answers.jsonl", rows)
    follow("my-data-into-a-model.md", folder, PAIRS)
    return folder


@pytest.mark.soak
def test_my_pairs_become_a_release(tuned: Path) -> None:
    assert (tuned / "my-model" / "gguf" / "model-q8_0.gguf").is_file()


@pytest.mark.soak
def test_my_questions_judge_it(tuned: Path) -> None:
    asked = [
        {"question": question(animal)[0]["content"], "choices": list(PLACES[:4]), "answer": number % 4}
        for number, animal in enumerate(ANIMALS)
    ]
    write_rows(tuned / "questions.jsonl", asked)
    shutil.rmtree(tuned / "my-model")
    said = follow("my-model-judged.md", tuned, PAIRS)
    assert any("my_questions" in printed and "sft" in printed for printed in said.values())
    assert "my_questions" in (tuned / "my-model" / "README.md").read_text(encoding="utf-8")
    assert json.loads((tuned / "my-model" / "parity.json").read_text(encoding="utf-8"))
