"""Measures the safety of all models of an evaluation, for `evaluate`."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from storage.artifact import Artifact
from storage.shards.lines import write_json_lines
from tasks.evaluate.safety.config import SafetyConfig
from tasks.evaluate.safety.questions import fingerprints
from tasks.evaluate.safety.rows import load_safety, safety_tasks
from tasks.evaluate.safety.stage import check_here as check_safety
from tasks.evaluate.safety.stage import safety
from tasks.evaluate.side_by_side.answers import answers
from tasks.evaluate.side_by_side.config import PromptsConfig
from tasks.evaluate.side_by_side.prompts import check_prompts, fingerprint, prompts
from tasks.filter.toxicity.stage import toxicity_model
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.protocol import Input
from tasks.stage.runtime import Runtime

SETS = ("harmful", "harmless")
OWN = ("manifest.json", "SHA256SUMS")  # of an artifact in the store


def sources(config: SafetyConfig | None) -> dict[str, str]:
    """Digests of all files that the section names and that the classifier is made from. Raises SourceError."""
    from tasks.filter.toxicity.stage import fingerprints as of_classifier

    if config is None:
        return {}
    digests = fingerprints(config)
    for name in _sets(config):
        digests |= {f"safety.{name}": digest for digest in fingerprint(_prompts(config, name)).values()}
    if config.continuations and config.toxicity:
        of_model = of_classifier(config.toxicity.model)
        digests |= {f"safety.toxicity.{name}": digest for name, digest in of_model.items()}
    return digests


def check_here(config: SafetyConfig | None, runtime: Runtime) -> None:
    """Raises ConfigError and SourceError for anything missing and for a file with a bad line, before the first stage of
    a run starts."""
    if config is not None:
        check_safety(config, runtime)
        for name in _sets(config):
            check_prompts(_prompts(config, name))


def measure_safety(
    config: SafetyConfig,
    models: Mapping[str, Artifact],
    held_out: Artifact,
    training: Artifact | None,
    documents: Artifact | None,
    out: Output,
) -> dict[str, dict[str, Any]]:
    """The measurements of each model as in safety.json. Copies the files of each into safety/MODEL, and its items into
    items/MODEL/safety-PART.jsonl.

    `documents` are those that the filter measured, which a custom classifier is trained on. Without any, `held_out`
    takes their place, which the package's classifier doesn't read.
    """
    classifier = None
    if config.continuations and config.toxicity:
        classifier = out.obtain(toxicity_model, config.toxicity.model, documents or held_out)
    # A folder of its own, as in a plain call the caller may have other answers in its scratch folder
    separate = dataclasses.replace(out, scratch=out.scratch / "safety-answers")
    calls: dict[str, tuple[StageConfig, Sequence[Input]]] = {}
    for name in _sets(config):
        questions = separate.obtain(prompts, _prompts(config, name), name=f"prompts.safety-{name}")
        calls |= {f"{model}/{name}": (config.answers(), (questions, artifact)) for model, artifact in models.items()}
    by_call = separate.obtain_all(answers, calls) if calls else {}
    trained = training if config.memorisation else None
    both = {model: [by_call.get(f"{model}/{name}") for name in SETS] for model in models}
    measured = out.obtain_all(
        safety, {model: (config, (it, held_out, trained, classifier, *both[model])) for model, it in models.items()}
    )
    for model, artifact in measured.items():
        shutil.copytree(artifact.path, out.path / "safety" / model, ignore=shutil.ignore_patterns(*OWN))
        for name, (_, items) in safety_tasks(artifact).items():
            target = out.path / "items" / model / f"{name}.jsonl"
            target.parent.mkdir(parents=True, exist_ok=True)
            write_json_lines(target, items)
    return {model: load_safety(artifact) for model, artifact in measured.items()}


def _sets(config: SafetyConfig) -> list[str]:
    return [name for name in SETS if config.refusals and getattr(config.refusals, name) is not None]


def _prompts(config: SafetyConfig, name: str) -> PromptsConfig:
    assert config.refusals is not None
    return PromptsConfig(file=getattr(config.refusals, name))
