"""Whole runs of the pretrain stage, as the pipeline starts them on a GPU, also with faults."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.children import launchers
from tasks.pretrain import PretrainConfig, pretrain
from tasks.pretrain.preflight.__main__ import CHECKS
from tasks.pretrain.preflight.bench import Bench
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tasks.stage.output import Output
from tasks.training.recovery.fault_injection import VARIABLE
from tests.gpu.test_engines import EXACT, ROUNDED
from tests.runtimes import runtime_of
from tests.tasks.pretrain.tiny_training import MODEL, losses_of, make_data

LEFT = 6 << 30  # bytes of the GPU that are left for a run that is to run out of memory


def config(**choices: Any) -> PretrainConfig:
    return PretrainConfig.model_validate(
        {
            "model": MODEL,
            "steps": 24,
            "global_batch": 8,
            "warmup_steps": 2,
            "validation_every": 12,
            "sample_tokens": 4,
            **choices,
        }
    )


def run(folder: Path, data: Path, device: str, chosen: PretrainConfig, **runtime: Any) -> Output:
    settings = {"engine": "ddp", "threads": 1, "device": device, "checkpoint_every": 6, "log_every": 1, **runtime}
    out = Output.at(folder, stage="pretrain", runtime=runtime_of(**settings))
    pretrain.function(chosen, *make_data(data), out)
    return out


@pytest.fixture(scope="module")
def on_cpu(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[list[float]]]:
    """The losses of the run on a CPU, in float32. It runs beside the first one on the device."""
    folder = tmp_path_factory.mktemp("cpu")
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(lambda: losses_of(run(folder, data, "cpu", config(precision="float32"))))


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_a_run_loses_what_it_loses_on_a_cpu(
    precision: str, engine: str, on_cpu: Future[list[float]], data: Path, device: str, tmp_path: Path
) -> None:
    found = losses_of(run(tmp_path, data, device, config(precision=precision), engine=engine))
    assert found == pytest.approx(on_cpu.result(), abs=EXACT if precision == "float32" else 2 * ROUNDED)


def test_a_rank_of_the_launcher_loses_it_too(
    on_cpu: Future[list[float]], data: Path, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over NCCL, only on the loopback device."""
    expected = on_cpu.result()

    def launched(module: str, spec: Path, *_: Any, **__: Any) -> list[str]:
        return [sys.executable, "-m", "tasks.children.ranks", "1", str(launchers.free_port()), module, str(spec)]

    monkeypatch.setattr(launchers, "training_command", launched)
    found = losses_of(run(tmp_path, data, device, config(precision="float32")))
    assert found == pytest.approx(expected, abs=EXACT)


@pytest.mark.usefixtures("cuda")
def test_a_run_whose_memory_runs_out_goes_on_with_smaller_micro_batches(
    data: Path, device: str, tmp_path: Path
) -> None:
    """A real shortage: this process holds the rest of the GPU."""
    free, _ = torch.cuda.mem_get_info()
    hoarded = torch.empty(max(1, free - LEFT), dtype=torch.uint8, device=device)
    wide = {**MODEL, "width": 1024, "heads": 8, "kv_heads": 8, "depth": 4}
    out = run(tmp_path, data, device, config(model=wide, steps=4, global_batch=1024), micro_batch=1024)
    del hoarded
    torch.cuda.empty_cache()
    assert out.facts["micro_batch"] < 1024
    assert any(event["kind"] == "out of memory" for event in out.facts["events"])


def test_a_run_recovers_from_nan(data: Path, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "nan@15")
    out = run(tmp_path, data, device, config())
    assert math.isfinite(losses_of(out)[-1])
    assert [event["step"] for event in out.facts["events"]] == [15]


@pytest.mark.parametrize("precision", ["float32", "auto"])
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_the_doctor_finds_nothing(
    engine: str, precision: str, spec: TrainSpec, world: World, device: str, tmp_path: Path
) -> None:
    runtime = runtime_of(spec.runtime, device=device, engine=engine)
    chosen = spec.config.model_copy(update={"precision": precision})
    bench = Bench(spec.model_copy(update={"scratch": tmp_path, "config": chosen, "runtime": runtime}), world)
    assert [check for check in (check(bench) for check in CHECKS) if check.state == "failed"] == []
