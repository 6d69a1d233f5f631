"""Requirements of GPUs on the engines and their launchers, as far as a CPU can test them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import ConfigError
from tasks.children.devices import own_device, place
from tasks.pretrain.engines import MicroBatch, open_engine
from tasks.pretrain.engines.native import NativeEngine
from tasks.pretrain.spec import TrainSpec
from tasks.pretrain.world import World
from tests.runtimes import runtime_of
from tests.tasks.pretrain.tiny_training import RUNTIME


def test_each_process_of_a_host_has_a_gpu_of_its_own() -> None:
    assert place("auto", 1, 2) == torch.device("cuda", 1)
    assert place("cuda", 0, 1) == torch.device("cuda", 0)
    assert place("auto", 3, 0) == place("cpu", 3, 2) == torch.device("cpu")


def test_the_only_gpu_that_a_process_sees_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs as a scheduler shows them. Libraries such as DeepSpeed take the GPU with the number LOCAL_RANK."""
    assert place("auto", 3, 1) == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device(runtime_of().compute) == torch.device("cuda", 0)
    assert os.environ["LOCAL_RANK"] == "0"


CLAIMS = """
import sys
from storage.errors import ConfigError
from tasks.children.devices import claim
try:
    claim(*sys.argv[1:])
    claim(*sys.argv[1:])
except ConfigError as error:
    sys.exit(str(error))
print("claimed", flush=True)
sys.stdin.read()
"""


def test_processes_of_a_training_that_share_a_gpu_are_told_of_it() -> None:
    def claim(gpu: str, meeting: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", CLAIMS, gpu, meeting],
            text=True,
            cwd=Path(__file__).parents[4],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        return process, process.stdout.readline()

    first, said = claim("GPU-1", "a:1")
    assert said == "claimed\n"
    others = [claim("GPU-2", "a:1"), claim("GPU-1", "a:2")]
    assert [said for _, said in others] == ["claimed\n"] * 2
    refused, said = claim("GPU-1", "a:1")
    assert "share a GPU of" in said
    assert "runtime.training.processes" in said
    assert refused.wait() == 1
    for process, _ in ((first, ""), *others):
        process.kill()
        process.wait()
    again, said = claim("GPU-1", "a:1")
    assert said == "claimed\n"
    again.kill()
    again.wait()


def test_gpus_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match="sees no GPU here") as caught:
        place("cuda", 0, 0)
    assert "runtime.compute.device" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"more than 2 processes.*has 2 GPU") as caught:
        place("auto", 2, 2)
    assert "runtime.training.processes to at most 2" in caught.value.remedy


@pytest.mark.soak
def test_where_graphs_are_recorded_gradients_have_memory_of_their_own(spec: TrainSpec, world: World) -> None:
    """A recorded backward pass writes its results to the same place each time: sums must be elsewhere."""
    runtime: dict[str, Any] = {"engine": "ddp", "micro_batch": 2, "compile": "reduce-overhead"}
    ids = torch.randint(0, spec.shape.vocab_size, (4, 33), generator=torch.Generator().manual_seed(0))
    batches: list[MicroBatch] = [(ids[start : start + 2, :-1], ids[start : start + 2, 1:], None) for start in (0, 2)]
    losses: dict[bool, list[float]] = {}
    for compiled in (True, False):
        chosen = runtime if compiled else {**runtime, "compile": "off"}
        open_with = spec.model_copy(update={"runtime": runtime_of(RUNTIME, **chosen)})
        trained = open_engine(open_with, world)
        assert isinstance(trained, NativeEngine)
        places = [gradients(trained)]
        losses[compiled] = []
        for _ in range(3):
            losses[compiled].append(float(trained.step(batches, 1e-2)[0]))
            places.append(gradients(trained))
        assert (places[0] == places[1] == places[2] and None not in places[0]) == compiled
    assert losses[True] == pytest.approx(losses[False], abs=1e-4)


def gradients(engine: NativeEngine) -> list[int | None]:
    """The address of each parameter's gradient."""
    held = [parameter.grad for parameter in engine.model.parameters()]
    return [None if gradient is None else gradient.data_ptr() for gradient in held]
