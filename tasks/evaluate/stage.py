"""The `evaluate` stage: any number of models, the same questions, one table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from storage.artifact import Artifact
from storage.errors import ConfigError, TrainingError
from tasks.children.devices import check_device_here
from tasks.children.supervise import run_module
from tasks.evaluate.benchmarks import select
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.scores import assemble, compared, side_by_side, verdict
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.pages import markdown_table
from tasks.stage.runtime import Runtime
from tasks.training.held_out import held_out_shards
from tasks.training.links import BASE, LINKS
from tasks.training.model_folder import check_tokenizer

ORDER = (BASE, *LINKS)


def check_here(config: EvaluateConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a GPU that this machine has not, before the first stage of a run starts."""
    check_device_here(runtime)


@stage(version=3, runtime=("compute",), check_here=check_here)
def evaluate(
    config: EvaluateConfig,
    models: Mapping[str, Artifact],
    validation: Artifact,
    benchmarks: Artifact,
    contamination: Artifact | None,
    out: Output,
) -> None:
    """Multiple-choice accuracy by lm-evaluation-harness, and bits per byte on held-out text, of each model.

    All are asked without chat template and without few-shot examples, so that the columns compare; they are listed in
    the pipeline's order, others after them by name. Writes scores.json and scores.md, and answers.md, in which all
    answer the same prompts; a score within two standard errors of chance is marked as such. Questions whose text occurs
    in the training documents, as the filter found (`contamination`), are dirty: they and the clean ones are also scored
    separately. `validation` holds token shards; or it is the benchmarks again, where a profile starts from a base and
    has none.
    """
    from tasks.evaluate.run import EvaluateSpec

    if not models:
        raise ConfigError("There is no model to evaluate.", "Give the stage at least one, by name.")
    models = {name: models[name] for name in sorted(models, key=_place)}
    digest = check_tokenizer(next(iter(models.values())).path)
    for model in models.values():
        check_tokenizer(model.path, expected=digest)
    spec = EvaluateSpec(
        config=config,
        runtime=out.runtime,
        models={name: model.path.resolve() for name, model in models.items()},
        tokenizer_digest=digest,
        validation=held_out_shards(validation, next(iter(models.values())).path, digest, out.scratch),
        benchmarks=[path.resolve() for path in select(benchmarks.files("*.jsonl"), config.tasks)],
        contamination=contamination.path.resolve() if contamination else None,
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], len(models), "models", line["note"])

    out.progress(0, len(models), "models", "starting")
    result = run_module("tasks.evaluate.run", spec, out, on_line=on_line, ranks=False, keeps="nothing")
    scores = assemble(result)
    if not all(model["tasks"] for model in scores["models"].values()):
        raise TrainingError("The harness scored no benchmark.", f"See {out.scratch / 'child.log'}.")
    _write(scores, result["facts"], out, of="questions" if validation.digest == benchmarks.digest else "documents")
    if config.prompts:
        _write_answers(config.prompts, {name: model["answers"] for name, model in result["models"].items()}, out)


def _place(name: str) -> tuple[int, str]:
    return ORDER.index(name) if name in ORDER else len(ORDER), name


def _write_answers(prompts: list[str], given: Mapping[str, list[str]], out: Output) -> None:
    rows = compared(prompts, given)
    (out.path / "answers.md").write_text(
        f"# Answers\n\nGreedy, through the chat template.\n\n{markdown_table(rows)}\n", encoding="utf-8"
    )
    out.table("Answers", rows)


def _write(scores: dict[str, Any], facts: dict[str, Any], out: Output, of: str) -> None:
    rows = side_by_side(scores)
    (out.path / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    text_of = {"questions": "the questions with their right answers", "documents": "held-out documents"}[of]
    note = f"Accuracy with likelihoods normalised by length; ± is one standard error. Bits per byte of {text_of}."
    text = f"# Scores\n\n{markdown_table(rows)}\n\n{note} {verdict(scores)}\n"
    (out.path / "scores.md").write_text(text, encoding="utf-8")
    out.fact(**facts)
    out.table("Scores", rows)
    bits = ", ".join(f"{name} {model['bits_per_byte']:.3f}" for name, model in scores["models"].items())
    out.count(scores=scores["models"], summary=f"bits per byte: {bits}")
