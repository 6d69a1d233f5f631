"""A mixture whose sources don't suffice is known before the training: one that is lost, and one that is read again."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from flows.commands.plan import show_plan
from flows.records.recorder import Asked
from storage.errors import EmptyOutput
from tests.flows.plan.test_no_news import WORDS, run

LENGTHS = {"books": 400, "notes": 90, "scraps": 5}  # words of a document


def profile(folder: Path, **pretrain: Any) -> str:
    """A profile of three sources, of which the filter removes the short ones."""
    sources = []
    for name, words in LENGTHS.items():
        texts = [" ".join(random.Random(f"{name} {number}").choices(WORDS, k=words)) for number in range(12)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        sources.append({"kind": "files", "name": name, "paths": [str(folder / f"{name}.jsonl")]})
    path = folder / "mixed.yaml"
    values = {
        "extends": "smoke",
        "name": "mixed",
        "sft": None,
        "dpo": None,
        "evaluate": None,
        "export": None,
        "download": {"benchmarks": [], "sources": sources},
        "filter": {
            "preset": "clean",
            "language": None,
            "pii": None,
            "gopher_quality": {"min_words": 20, "min_stop_words": None},
        },
        "tokenizer": {"vocab_size": 300},
        "pretrain": pretrain,
        "runtime": {"store": str(folder / "store"), "data": {"workers": 1}},
    }
    path.write_text(yaml.safe_dump(values))
    return str(path)


def test_what_a_mixture_lacks_is_said_before_the_training(tmp_path: Path) -> None:
    def planned(**pretrain: Any) -> str:
        told = Console(file=io.StringIO(), width=200)
        show_plan(told, Asked(profile(tmp_path, **pretrain), [], "pretrain"))
        return told.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    lost = profile(tmp_path, mixture={"books": 1, "scraps": 1})
    assert run(lost, "filter").location.startswith("filter/"), "a run that ends there shows what was removed"
    with pytest.raises(EmptyOutput, match=r"gives scraps a weight, but the filter removed all its 12 .*--removed-by"):
        run(lost, "tokenize")
    with pytest.raises(EmptyOutput, match="gives scraps a weight"):
        planned(mixture={"books": 1, "scraps": 1})
    even = {"books": 1, "notes": 1}
    run(profile(tmp_path, mixture=even), "tokenize")
    assert "pretrain reads books 1" in planned(mixture=even)
    refused = planned(mixture=even, max_epochs={"notes": 2})
    assert "pretrain would read notes " in refused
    assert "allows 2." in refused
    assert "pretrain reads" not in planned(mixture=even, steps=2, warmup_steps=1)
