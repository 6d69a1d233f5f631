"""The stage `sft` with packed rows, noise and split conversations: the same result on every engine, in any layout and
after a kill; and without them that of TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from models.convert import load
from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError
from tasks.posttrain.batches import training_order
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.posttrain.rows.instruction import instructions, render_instruction
from tasks.posttrain.rows.prepare import prepare
from tasks.stage.output import Output
from tests.tasks.foreign import make_foreign
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.posttrain.uneven import long_answer, output, token_means, uneven_rows
from tests.tasks.pretrain.tiny_training import losses_of
from tests.tasks.tiny_model import PLACES, make_model, question, write_rows

NOISY = SftConfig(global_batch=8, epochs=1.5, validation_share=0.2, validation_every=2, neftune_alpha=5.0)
LAYOUTS: dict[str, dict[str, Any]] = {
    "two rows": {"micro_batch": 2},
    "two processes": {"processes": 2, "micro_batch": 2},
    "fsdp": {"processes": 2, "engine": "fsdp", "zero_stage": 3, "recompute": "full"},
    "zero 2": {"processes": 2, "engine": "deepspeed", "zero_stage": 2, "offload": "optimizer", "micro_batch": 1},
    "zero 3": {"processes": 2, "engine": "deepspeed", "zero_stage": 3, "micro_batch": 2},
    "context": {"processes": 2, "context_parallel": 2, "micro_batch": 4},
    "context, fsdp": {"processes": 2, "context_parallel": 2, "engine": "fsdp", "zero_stage": 3, "recompute": "full"},
    "compiled": {"compile": "default"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


def train(config: SftConfig, model: Artifact, rows: list[dict[str, Any]], folder: Path, **runtime: Any) -> Output:
    out = output(folder, "sft", **runtime)
    sft.function(config, model, Artifact.at(write_rows(folder / "pairs" / "all.jsonl", rows)), out)
    return out


@pytest.fixture(scope="module")
def padded(model: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Output:
    return train(NOISY, model, uneven_rows()[:20], tmp_path_factory.mktemp("padded"))


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_rows_change_neither_losses_nor_weights_nor_noise(
    layout: str, model: Artifact, padded: Output, tmp_path: Path
) -> None:
    out = train(NOISY, model, uneven_rows()[:20], tmp_path, packing=True, **LAYOUTS[layout])
    assert losses_of(out) == pytest.approx(losses_of(padded), rel=1e-5)
    assert out.counts["validation_loss"] == pytest.approx(padded.counts["validation_loss"], rel=1e-5)
    theirs, ours = (load(made.path / "model").state_dict() for made in (padded, out))
    tolerance = 1e-4 if layout == "compiled" else 1e-5
    assert all(torch.allclose(theirs[name], ours[name], atol=tolerance) for name in ours)
    assert out.facts["tokens"] == padded.facts["tokens"]
    assert out.facts["rows"] < padded.facts["rows"] == 24
    assert out.facts["padding_share"] < 0.1 < padded.facts["padding_share"]
    assert 0 < out.facts["supervised_tokens_per_second"] < out.facts["tokens_per_second"]
    assert [row["measure"] for row in out.facts["tables"]["Speed"]][-1] == "padding"


@pytest.mark.soak
def test_there_is_noise_in_training_and_none_in_validation(model: Artifact, padded: Output) -> None:
    rows, tokenizer = uneven_rows()[:20], load_tokenizer(model.path)
    render = lambda row, length: render_instruction(row, tokenizer, length)  # noqa: E731
    train_rows, held_out, _ = prepare(rows, render, 128, validation_share=0.2, max_dropped_share=0.0)
    loss, _ = token_means(load(padded.path / "model"), held_out)
    assert padded.counts["validation_loss"] == pytest.approx(loss, abs=1e-5)
    first = [train_rows[number] for number in training_order(NOISY, len(train_rows))[:8]]
    assert abs(losses_of(padded)[0] - token_means(load(model.path), first)[0]) > 1e-3


@pytest.mark.soak
@pytest.mark.parametrize("packing", [True, False])
def test_killed_with_packing_noise_and_parts_it_ends_with_the_same_bytes(
    packing: bool, model: Artifact, tmp_path: Path
) -> None:
    config = SftConfig(global_batch=8, epochs=2, neftune_alpha=5.0, overlong="split", learning_rate=5e-3)
    rows = [
        {**row, "messages": [*row["messages"], *question("hen"), long_answer(PLACES[number % 12], 8)] * 2}
        if number % 3 == 0
        else row
        for number, row in enumerate(uneven_rows()[:40])
    ]
    whole = train(config, model, rows, tmp_path / "whole", packing=packing, micro_batch=2, checkpoint_every=4)
    assert whole.counts["split_pairs"] == 14
    assert whole.counts["parts"] >= 28
    assert whole.counts["documents"]["kept"] == 40
    out = output(tmp_path / "killed", "sft", packing=packing, micro_batch=2, checkpoint_every=4, log_every=1)
    interrupt_and_resume(sft, config, (model, Artifact.at(tmp_path / "whole" / "pairs")), out, at=6)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(whole.path))
    assert out.counts == whole.counts


@pytest.mark.soak
def test_without_them_the_losses_are_those_of_trl(model: Artifact, tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    config = SftConfig(global_batch=8, epochs=2, validation_share=0.0, weight_decay=0.1, warmup_share=0.1)
    rows = uneven_rows()[:80]
    out = train(config, model, rows, tmp_path / "ours")
    tokenizer = load_tokenizer(model.path)
    form = instructions("all", "drop")
    order = training_order(config, len(rows))
    arguments = SFTConfig(
        output_dir=str(tmp_path / "theirs"),
        max_steps=20,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        weight_decay=0.1,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        train_sampling_strategy="sequential",
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        max_length=None,
        seed=0,
    )
    trainer = SFTTrainer(
        model=load_pretrained(model.path),
        args=arguments,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([form.render(rows[number], tokenizer, 128) for number in order]),
    )
    trainer.train()
    theirs = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(theirs) == 20
    assert losses_of(out) == pytest.approx(theirs, abs=1e-5)
    weights = {name: value.detach() for name, value in trainer.model.named_parameters()}
    ours = dict(load_pretrained(out.path / "model").named_parameters())
    assert all(torch.allclose(ours[name], weights[name], atol=1e-5) for name in weights)


@pytest.mark.soak
def test_a_base_that_would_mix_conversations_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    base = Artifact.at(make_foreign(tmp_path / "model", "opt"))
    with pytest.raises(ConfigError, match=r"runtime\.posttrain\.packing is on, but opt can't keep conversations"):
        train(NOISY, base, uneven_rows()[:20], tmp_path / "out", packing=True)
