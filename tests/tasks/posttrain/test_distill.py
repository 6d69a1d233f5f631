"""Distillation: the divergences are those of the papers, and a student approaches its teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.pretrained import load_pretrained
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from tasks.posttrain.conversations.divergence import divergence
from tasks.posttrain.methods.distill import DistillConfig, Divergence, distill
from tasks.stage.output import Output
from tests.tasks.interrupt import interrupt_and_resume
from tests.tasks.posttrain.uneven import output
from tests.tasks.tiny_model import make_instructions, make_model

CONFIG = DistillConfig(epochs=1, global_batch=16, learning_rate=5e-3, validation_share=0.2)


def by_hand(student: Any, teacher: Any, kind: str, temperature: float) -> list[float]:
    found = []
    for s, t in zip(student / temperature, teacher / temperature, strict=True):
        q, p = np.exp(s) / np.exp(s).sum(), np.exp(t) / np.exp(t).sum()
        m = (p + q) / 2
        forward, reverse = (p * np.log(p / q)).sum(), (q * np.log(q / p)).sum()
        between = (p * np.log(p / m)).sum() / 2 + (q * np.log(q / m)).sum() / 2
        found.append({"forward": forward, "reverse": reverse, "jsd": between}[kind] * temperature**2)
    return found


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_the_divergences_are_those_of_the_papers(kind: Divergence, temperature: float) -> None:
    student, teacher = np.random.default_rng(0).normal(size=(2, 5, 11)) * 3
    found = divergence(torch.tensor(student), torch.tensor(teacher), kind, temperature)
    assert found.tolist() == pytest.approx(by_hand(student, teacher, kind, temperature), rel=1e-5)
    assert divergence(torch.tensor(student), torch.tensor(student), kind).abs().max() < 1e-6


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact, Artifact]:
    """A student whose last layer differs from its teacher's, instructions, and the teacher."""
    folder = tmp_path_factory.mktemp("distill")
    teacher = make_model(folder / "teacher")
    student = load_pretrained(teacher)
    with torch.no_grad():
        student.model.layers[1].mlp.down_proj.weight.normal_(generator=torch.Generator().manual_seed(0))
    make_model(folder / "student")  # for the files beside the weights
    student.save_pretrained(folder / "student")
    return Artifact.at(folder / "student"), Artifact.at(make_instructions(folder / "pairs")), Artifact.at(teacher)


@pytest.fixture(scope="module")
def taught(inputs: tuple[Artifact, Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("taught"), "distill")
    distill.function(CONFIG, *inputs, out)
    return out


def test_a_student_comes_nearer_to_its_teacher(taught: Output) -> None:
    rows = taught.counts["tables"]["Validation"]
    assert rows[-1]["divergence"] < 0.5 * rows[0]["divergence"]
    assert rows[-1]["loss"] == pytest.approx(rows[-1]["divergence"], abs=1e-4), "the hard share is 0"
    assert taught.counts["validation_divergence"] == rows[-1]["divergence"]


@pytest.mark.soak
def test_interrupted_and_resumed_it_ends_with_the_same_bytes(
    inputs: tuple[Artifact, Artifact, Artifact], taught: Output, tmp_path: Path
) -> None:
    out = output(tmp_path, "distill", checkpoint_every=2, log_every=1)
    interrupt_and_resume(distill, CONFIG, inputs, out, at=5)
    assert out.facts["resumed_from_step"] == 4
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(taught.path))


@pytest.mark.soak
@pytest.mark.parametrize("engine", [{}, {"engine": "deepspeed", "zero_stage": 3}, {"engine": "fsdp", "zero_stage": 3}])
def test_processes_and_engines_change_nothing_but_rounding(
    engine: dict[str, Any], inputs: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    config = CONFIG.model_copy(update={"hard_share": 0.5})
    alone = output(tmp_path / "1", "distill")
    both = output(tmp_path / "2", "distill", processes=2, **engine)
    for out in (alone, both):
        distill.function(config, *inputs, out)
    for name in ("validation_loss", "validation_divergence", "validation_cross_entropy"):
        assert both.counts[name] == pytest.approx(alone.counts[name], abs=1e-3)
    mixed = (alone.counts["validation_divergence"] + alone.counts["validation_cross_entropy"]) / 2
    assert alone.counts["validation_loss"] == pytest.approx(mixed, abs=1e-4)
