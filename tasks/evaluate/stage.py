"""The `evaluate` stage: any number of models, the same questions, one table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.lines import read_json_lines, write_json_lines
from tasks.children.devices import check_device_here
from tasks.children.supervise import run_module
from tasks.evaluate.chosen import Chosen, chosen
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.score.stage import ITEMS, SCORE, score
from tasks.evaluate.scores import compared, judged, side_by_side, verdict
from tasks.evaluate.subsets import Dirty, check_asked, find_dirty, split
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


@stage(version=4, runtime=("compute",), check_here=check_here)
def evaluate(
    config: EvaluateConfig,
    models: Mapping[str, Artifact],
    validation: Artifact,
    benchmarks: Artifact,
    contamination: Artifact | None,
    out: Output,
) -> None:
    """Benchmarks by lm-evaluation-harness, and bits per byte on held-out text, of each model.

    Each model and benchmark is an artifact of its own (`score`). The models are listed in the pipeline's order, others
    after them by name. Writes scores.json and scores.md, items/ with a line a question for each model and benchmark,
    and answers.md, in which all answer the same prompts; a score within two standard errors of chance is marked as
    such. Questions whose text occurs in the training documents, as the filter found (`contamination`), are dirty: they
    and the clean ones are also scored separately. `validation` holds token shards; or it is the benchmarks again, where
    a profile starts from a base and has none.
    """
    if not models:
        raise ConfigError("There is no model to evaluate.", "Give the stage at least one, by name.")
    models = {name: models[name] for name in sorted(models, key=_place)}
    asked = chosen(config, benchmarks)
    measured = _held_out(config, models, validation, out)
    calls = {
        (name, label): (one.config, (model, one.data)) for name, model in models.items() for label, one in asked.items()
    }
    made = out.obtain_all(score, {f"{name}/{label}": call for (name, label), call in calls.items()})
    dirty = find_dirty(contamination.path, config.dirty_share) if contamination else {}
    scores: dict[str, Any] = {
        "models": {
            name: {
                "bits_per_byte": round(measured["models"][name]["bits_per_byte"], 6),
                "tasks": {
                    label: _score(made[f"{name}/{label}"], one, dirty, out, f"{name}/{label}")
                    for label, one in asked.items()
                },
            }
            for name in models
        }
    }
    _write(scores, measured["facts"], out, of="questions" if validation.digest == benchmarks.digest else "documents")
    if config.prompts:
        _write_answers(config.prompts, {name: model["answers"] for name, model in measured["models"].items()}, out)


def _place(name: str) -> tuple[int, str]:
    return ORDER.index(name) if name in ORDER else len(ORDER), name


def _held_out(config: EvaluateConfig, models: Mapping[str, Artifact], validation: Artifact, out: Output) -> Any:
    """Bits per byte and answers of each model."""
    from tasks.evaluate.run import EvaluateSpec

    digest = check_tokenizer(next(iter(models.values())).path)
    for model in models.values():
        check_tokenizer(model.path, expected=digest)
    spec = EvaluateSpec(
        config=config,
        runtime=out.runtime,
        models={name: model.path.resolve() for name, model in models.items()},
        tokenizer_digest=digest,
        validation=held_out_shards(validation, next(iter(models.values())).path, digest, out.scratch),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], len(models), "models", line["note"])

    out.progress(0, len(models), "models", "starting")
    return run_module("tasks.evaluate.run", spec, out, on_line=on_line, ranks=False, keeps="nothing")


def _score(made: Artifact, one: Chosen, dirty: Mapping[str, Dirty], out: Output, name: str) -> dict[str, Any]:
    """The score of a model in a benchmark; its items are taken over."""
    found = json.loads((made.path / SCORE).read_text(encoding="utf-8"))
    items = [*read_json_lines(made.path / ITEMS)]
    target = out.path / "items" / f"{name}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json_lines(target, items)
    known = dirty.get(one.config.task)
    if known is not None:
        check_asked(one.config.task, (str(item["id"]) for item in items), known)
    return judged(found, split(items, found["headline"], known))


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
    note = f"± is one standard error. Bits per byte of {text_of}."
    text = f"# Scores\n\n{markdown_table(rows)}\n\n{note} {verdict(scores)}\n"
    (out.path / "scores.md").write_text(text, encoding="utf-8")
    out.fact(**facts)
    out.table("Scores", rows)
    bits = ", ".join(f"{name} {model['bits_per_byte']:.3f}" for name, model in scores["models"].items())
    out.count(scores=scores["models"], summary=f"bits per byte: {bits}")
