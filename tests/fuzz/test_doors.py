"""Whatever comes in by any door is read, or refused by an error that a user can act on: no traceback, no crash, no
endless loop, no memory without bounds. The kept inputs of tests/fuzz/corpus are read each time."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import BadDocument
from tasks.download.pairs import instruction, preference
from tests.fuzz.doors import DOORS
from tests.fuzz.run import CORPUS, cases

ROOT = Path(__file__).parents[2]


def fuzz(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--found", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" cases\n") == len(DOORS)


def test_no_input_that_was_found_once_or_is_tried_now_gets_by_a_door(tmp_path: Path) -> None:
    fuzz(tmp_path, "--seconds", "0.05")


@pytest.mark.soak
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_no_input_of_many_gets_by_a_door(seed: str, tmp_path: Path) -> None:
    fuzz(tmp_path, "--seconds", "10", "--seed", seed)


def test_every_case_can_be_made_again_and_every_corpus_has_a_door() -> None:
    for name in ("rows", "faults"):
        for one, other, _ in zip(cases(DOORS[name], 5), cases(DOORS[name], 5), range(200), strict=False):
            assert one == other
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= set(DOORS)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["user", "assistant"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.fixed_dictionaries({}, optional={"role": inner, "content": inner})
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)
KEYS = (
    *("messages", "conversations", "instruction", "input", "output", "system", "history", "tools", "response"),
    *("prompt", "completion", "message_tree_id", "chosen", "rejected"),
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, VALUES)))
@settings(max_examples=200)
def test_any_row_is_a_pair_or_a_bad_document(row: dict[str, Any]) -> None:
    for take in (instruction, preference):
        with suppress(BadDocument):
            json.dumps(take(row, "source"), ensure_ascii=False).encode()
