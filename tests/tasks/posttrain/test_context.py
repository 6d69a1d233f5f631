"""Two processes that share the tokens of each row: `torchrun … -m tests.tasks.posttrain.test_context FOLDER`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import ConfigError
from tasks.posttrain.attention.context import share_context
from tasks.posttrain.methods.orpo import ORPO, OrpoConfig
from tests.tasks.foreign import make_foreign
from tests.tasks.posttrain.in_process import parts_of
from tests.tasks.pretrain.engines.pair import results_of_pair
from tests.tasks.tiny_model import make_model

ROWS = [
    {"prompt_ids": [3, 4, 5, 6], "chosen_ids": [7] * (5 + 3 * row), "rejected_ids": [8, 9] * (2 + row)}
    for row in range(4)
]


def gradients(folder: Path, **runtime: Any) -> dict[str, Any]:
    """The loss and the gradients of a step, and the tokens in each forward pass of the layers."""
    config = OrpoConfig(global_batch=2, gradient_clip=1e9, warmup_share=0.0, learning_rate=1e-9)
    parts = parts_of(ORPO, config, folder / "model", ROWS, folder, micro_batch=1, **runtime)
    trainer = ORPO.make_trainer(replace(parts, arguments={**parts.arguments, "max_steps": 1, "save_strategy": "no"}))
    share_context(trainer, parts.runtime.posttrain)
    widths: list[int] = []
    bare: Any = trainer.model
    bare.model.layers[0].register_forward_hook(lambda layer, inputs, output: widths.append(inputs[0].shape[1]))
    trainer.train()
    states = trainer.optimizer.optimizer.state
    moments = {name: states[one]["exp_avg"].tolist() for name, one in trainer.model.named_parameters()}
    return {"loss": trainer.state.log_history[0]["loss"], "widths": widths, "moments": moments}


@pytest.mark.soak
def test_each_has_half_of_the_tokens_and_the_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    one = gradients(tmp_path)
    (folder := tmp_path / "two").mkdir()
    (folder / "model").symlink_to(tmp_path / "model")
    two = results_of_pair("tests.tasks.posttrain.test_context", folder)
    assert two["widths"] == [-(-width // 2) for width in one["widths"]]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    for name, expected in one["moments"].items():
        torch.testing.assert_close(torch.tensor(two["moments"][name]), torch.tensor(expected), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize(("architecture", "named"), [("gpt2", "num_attention_heads are 4"), ("mamba", "needs a mask")])
def test_a_model_whose_rows_cant_be_divided_is_refused_by_name(architecture: str, named: str, tmp_path: Path) -> None:
    folder = make_foreign(tmp_path / "model", architecture)
    config = OrpoConfig(global_batch=2)
    parts = parts_of(ORPO, config, folder, ROWS, tmp_path, micro_batch=1)
    trainer = ORPO.make_trainer(parts)
    ranks = 3 if architecture == "gpt2" else 2
    runtime = parts.runtime.posttrain.model_copy(update={"context_parallel": ranks})
    with pytest.raises(ConfigError, match=f"can't divide the rows of {architecture}: .*{named}"):
        share_context(trainer, runtime)


if __name__ == "__main__":
    found = gradients(Path(sys.argv[1]), context_parallel=2, processes=2)
    if torch.distributed.get_rank() == 0:
        (Path(sys.argv[1]) / "results.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
