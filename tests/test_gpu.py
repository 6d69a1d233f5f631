"""The tests of tests/gpu and the benchmark for GPUs, where there is no GPU: the tests are all there, and skipped for
the one reason that there is; the benchmark compares with ours alone, and all its models have aligned vocabularies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import speed
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.results import Results
from benchmarks.gpu.sizes import sizes
from benchmarks.gpu.tokens import is_whole, seal
from benchmarks.pretrain.ours import shape_of
from benchmarks.pretrain.sizes import Task
from models.devices import DEVICES
from models.presets import count_parameters

ROOT = Path(__file__).parents[1]


@pytest.mark.soak
def test_without_a_gpu_all_are_skipped_for_that() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "tests/gpu"]
    environment = {name: value for name, value in os.environ.items() if name != "GRISTMILL_TEST_DEVICE"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    reasons = re.findall(r"^SKIPPED \[(\d+)\] .*: (.*)$", done.stdout, re.MULTILINE)
    assert {reason for _, reason in reasons} == {"there is no GPU"}
    assert sum(int(number) for number, _ in reasons) > 100
    assert re.search(r"^\d+ skipped", done.stdout, re.MULTILINE)


class Measured(Bench):
    """A run of the benchmark in which the sides take the seconds given; those that are not given fail."""

    seconds_of: dict[str, float]

    @property
    def tokens(self) -> tuple[Path, Path]:  # none are read
        return Path("tokens"), Path("tokenizer")

    def measured(self, section: str, what: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        side = json.loads(given["task"])["side"]
        if side not in self.seconds_of:
            return None
        return {"seconds": self.seconds_of[side], "peak": 1e9, "loss": 5.0}


def rows_of(folder: Path, seconds_of: dict[str, float]) -> dict[str, dict[str, Any]]:
    """The rows of the section speed for LLaMA's shape, by side."""
    bench = Measured("cpu", tiny=True, seconds=60, results=Results(folder), data=folder)
    bench.seconds_of = seconds_of
    speed.run(bench)
    speed.run_others(bench)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return {row["side"]: row for row in rows if row.get("family") == "llama"}


def test_speeds_are_compared_with_ours_and_with_nothing_where_ours_failed(tmp_path: Path) -> None:
    seconds = {"gristmill": 3.0, "gristmill, FSDP, compiled": 1.0, "transformers Trainer": 4.0}
    rows = rows_of(tmp_path / "both", {speed.OURS: 2.0, **seconds})
    ratios = {side: row["ours_over_it"] for side, row in rows.items()}
    assert ratios == {speed.OURS: 1.0, "gristmill": 1.5, "gristmill, FSDP, compiled": 0.5, "transformers Trainer": 2.0}
    rows = rows_of(tmp_path / "theirs", seconds)
    assert {side: row["ours_over_it"] for side, row in rows.items()} == dict.fromkeys(seconds)


def test_the_models_of_the_benchmark_have_the_sizes_of_their_names() -> None:
    for name, size in sizes(tiny=False).items():
        assert size.vocab % 128 == 0
        parameters = count_parameters(shape_of(Task(speed.OURS, "llama", size, 1, "", "")))
        named = name.partition(" ")[0]
        assert parameters == pytest.approx(float(named[:-1]) * {"M": 1e6, "B": 1e9}[named[-1]], rel=0.06)


def test_every_side_has_the_micro_batch_that_fits_ours() -> None:
    (size,) = (size for name, size in sizes(tiny=False).items() if name.startswith("1.3B"))
    sides = (speed.OURS, speed.OURS_FSDP, "transformers Trainer")
    tasks = [Task(side, "llama", replace(size, micro_batch=64), 1, "", "", "cuda") for side in sides]
    fitted = {speed.fitted(task, DEVICES["h100"]).size.micro_batch for task in tasks}
    assert fitted == {16}


def test_a_second_run_adds_to_the_rows_of_the_first(tmp_path: Path) -> None:
    for number in range(2):
        Results(tmp_path).row("speed", number=number)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["number"] for row in rows] == [0, 1]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--minutes", "nan"], 2, "nan is no number of minutes"),
        (["--minutes", "0"], 2, "0 is no number of minutes"),
        (["--out", "/proc/results"], 2, "Name another folder by --out"),
        (["attention", "--minutes", "0.0001"], 3, "left out for lack of time"),
    ],
)
def test_options_that_are_none_and_time_that_is_too_short_are_said(
    words: list[str], code: int, said: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--tiny", "--out", str(tmp_path), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_data_that_was_damaged_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "shard").write_text("tokens")
    assert not is_whole(tmp_path)
    seal(tmp_path)
    assert is_whole(tmp_path)
    (tmp_path / "shard").write_text("tokenz")
    assert not is_whole(tmp_path)
