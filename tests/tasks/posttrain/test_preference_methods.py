"""Every preference method: TRL's losses if TRL has them, exact resume, adapters, any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.pretrained import load_pretrained
from models.tokenizer import load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from tasks.posttrain.batches import training_order
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.methods.cpo import CpoConfig, cpo
from tasks.posttrain.methods.dpo import DPO, DpoConfig
from tasks.posttrain.methods.kto import KTO, KtoConfig, kto
from tasks.posttrain.methods.orpo import OrpoConfig, orpo
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.labelled import labelled_of, render_labelled
from tasks.posttrain.rows.preference import render_preference
from tasks.posttrain.rows.prepare import prepare
from tasks.stage.decorator import Stage
from tasks.stage.output import Output
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.posttrain.in_process import log_probability, losses_over, parts_of
from tests.tasks.posttrain.uneven import output, uneven_pairs
from tests.tasks.pretrain.tiny_training import losses_of
from tests.tasks.tiny_model import make_model, write_rows

SHORT: dict[str, Any] = {"global_batch": 16, "learning_rate": 1e-3, "validation_share": 0.1}
METHODS: dict[str, tuple[Stage, PosttrainConfig]] = {
    "orpo": (orpo, OrpoConfig(**SHORT)),
    "cpo": (cpo, CpoConfig(**SHORT)),
    "simpo": (cpo, CpoConfig(**SHORT, loss="simpo", beta=2.0)),
    "kto": (kto, KtoConfig(**SHORT, epochs=0.5)),
}
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "zero 3": {"engine": "deepspeed", "zero_stage": 3},
    "fsdp": {"engine": "fsdp", "zero_stage": 3, "recompute": "full"},
}
STEPS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model"))


def pairs_at(folder: Path) -> Artifact:
    return Artifact.at(write_rows(folder / "pairs" / "all.jsonl", uneven_pairs()))


def labelled_rows(model: Path) -> list[Row]:
    """Five desirable answers for each undesirable one, so that the model moves towards what is measured."""
    tokenizer = load_tokenizer(model)
    split = [half for row in uneven_pairs() for half in labelled_of(row)]
    kept = [row for number, row in enumerate(split) if row["label"] or number % 5 == 1]
    return [render_labelled(row, tokenizer, 128) for row in kept]


@pytest.mark.soak
def test_dpo_has_the_losses_of_trl_with_its_reference_model_in_memory(model: Artifact, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    tokenizer, reference = load_tokenizer(model.path), load_pretrained(model.path)
    config = DpoConfig(global_batch=8, learning_rate=1e-3, epochs=STEPS * 8 / 84)
    rows = []
    for row in uneven_pairs():
        rendered = render_preference(row, tokenizer, 128)
        for name in ("chosen", "rejected"):
            known = log_probability(reference, rendered["prompt_ids"], rendered[f"{name}_ids"])
            rendered[f"ref_{name}_logps"] = known
        rows.append(rendered)
    parts = parts_of(DPO, config, model.path, rows, tmp_path / "ours")

    def theirs() -> Any:
        from datasets import Dataset

        common = parts_of(DPO, config, model.path, rows, tmp_path / "theirs")
        messages = [{name: row[name] for name in ("prompt", "chosen", "rejected")} for row in uneven_pairs()]
        arguments = DPOConfig(**common.arguments, beta=config.beta, max_length=None)
        given = {**common.common, "train_dataset": Dataset.from_list(messages)}
        return DPOTrainer(ref_model=common.load_model(), args=arguments, **given)

    expected = losses_over(theirs, config, len(rows))
    found = losses_over(lambda: DPO.make_trainer(parts), config, len(rows))
    assert len(found) == STEPS
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.soak
def test_kto_has_the_losses_of_trl_where_a_micro_batch_is_the_whole_batch_and_the_same_with_any_other(
    model: Artifact, tmp_path: Path
) -> None:
    from trl import KTOConfig, KTOTrainer

    rows = labelled_rows(model.path)
    config = KtoConfig(global_batch=8, learning_rate=1e-3, epochs=STEPS * 8 / len(rows), undesirable_weight=2.0)

    def theirs() -> Any:
        class InOrder(KTOTrainer):  # type: ignore[misc]
            def _prepare_dataset(self, dataset: Any, *arguments: Any) -> Any:
                answers = dataset["completion_ids"]
                return dataset.add_column(
                    "KL_completion_ids",
                    [answers[at - 1 if at % 8 else min(at + 7, len(answers) - 1)] for at in range(len(answers))],
                )

        parts = parts_of(KTO, config, model.path, rows, tmp_path / "theirs")
        ordered = parts.common["train_dataset"].select(training_order(config, len(rows))).flatten_indices()
        arguments = KTOConfig(**parts.arguments, beta=config.beta, undesirable_weight=2.0, max_length=128)
        trainer = InOrder(ref_model=parts.load_model(), args=arguments, **{**parts.common, "train_dataset": ordered})
        trainer.train()
        points = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
        assert max(points) > 0.1, "else the point would not matter"
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    expected = theirs()
    assert len(expected) == STEPS
    for micro_batch in (8, 2):
        parts = parts_of(KTO, config, model.path, rows, tmp_path / str(micro_batch), micro_batch=micro_batch)
        found = losses_over(lambda parts=parts: KTO.make_trainer(parts), config, len(rows))  # type: ignore[misc]
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("name", METHODS)
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(name: str, model: Artifact, tmp_path: Path) -> None:
    stage, config = METHODS[name]
    inputs = (model, pairs_at(tmp_path))
    whole = output(tmp_path / "whole", stage.name, checkpoint_every=2)
    stage.function(config, *inputs, whole)
    out = output(tmp_path / "resumed", stage.name, checkpoint_every=2, log_every=1)
    interrupt_and_resume(stage, config, inputs, out, at=3)
    assert out.facts["resumed_from_step"] == 2
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(whole.path))
    assert out.counts == whole.counts
    assert losses_of(out)[-1] < losses_of(out)[0]


@pytest.mark.soak
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["orpo", "kto"])
def test_two_processes_of_any_engine_learn_what_one_does(
    name: str, engine: str, model: Artifact, tmp_path: Path
) -> None:
    stage, config = METHODS[name]
    inputs = (model, pairs_at(tmp_path))
    one = output(tmp_path / "one", stage.name)
    two = output(tmp_path / "two", stage.name, processes=2, **ENGINES[engine])
    stage.function(config, *inputs, one)
    stage.function(config, *inputs, two)
    assert losses_of(two) == pytest.approx(losses_of(one), abs=5e-4)
    for measure in ("validation_loss", *(f"validation_{name}" for name in ("divergence", "preference_accuracy"))):
        if measure in one.counts:
            assert two.counts[measure] == pytest.approx(one.counts[measure], abs=1e-3), measure


@pytest.mark.soak
@pytest.mark.parametrize("name", METHODS)
def test_an_adapter_is_trained_and_merged(name: str, model: Artifact, tmp_path: Path) -> None:
    stage, config = METHODS[name]
    adapted = type(config).model_validate({**config.model_dump(), "adapter": {"rank": 4}, "learning_rate": 1e-2})
    out = output(tmp_path, stage.name)
    stage.function(adapted, model, pairs_at(tmp_path), out)
    assert (out.path / "adapter" / "adapter_model.safetensors").exists()
    assert out.counts["merged_logit_difference"] < 1e-4
    learned = losses_of(out)  # the result on a handful of held-out pairs is mere chance
    assert learned[-1] < learned[0]


@pytest.mark.soak
@pytest.mark.parametrize("processes", [1, 2])
def test_the_measures_of_kto_are_means_over_rows_of_a_label(processes: int, model: Artifact, tmp_path: Path) -> None:
    out: Output = output(tmp_path, "kto", processes=processes)
    config = KtoConfig(global_batch=8, epochs=0.2, validation_share=0.3, learning_rate=1e-3, deduplicate="none")
    kto.function(config, model, pairs_at(tmp_path), out)
    tokenizer = load_tokenizer(model.path)
    policy, reference = load_pretrained(out.path / "model"), load_pretrained(model.path)
    split = [half for row in uneven_pairs() for half in labelled_of(row)]
    _, held_out, _ = prepare(
        split,
        lambda row, length: render_labelled(row, tokenizer, length),
        128,
        validation_share=0.3,
        max_dropped_share=0.0,
    )
    for label, name in ((True, "desirable"), (False, "undesirable")):
        both = [
            [log_probability(scored, row["prompt_ids"], row["completion_ids"]) for scored in (policy, reference)]
            for row in held_out
            if row["label"] is label
        ]
        reward = sum(config.beta * (ours - theirs) for ours, theirs in both) / len(both)
        assert out.counts[f"validation_{name}_reward"] == pytest.approx(reward, abs=2e-4)
        found = out.counts[f"validation_{name}_log_probability"]
        assert found == pytest.approx(sum(ours for ours, _ in both) / len(both), rel=1e-5)
