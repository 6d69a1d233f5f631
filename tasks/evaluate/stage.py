"""The `evaluate` stage: any number of models, the same questions, one table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from typing import Any

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.lines import read_json_lines, write_json_lines
from tasks.children.devices import check_device_here
from tasks.evaluate.benchmarks import Chosen, check_samples, chosen
from tasks.evaluate.config import EvaluateConfig
from tasks.evaluate.language.files import check_files, fingerprints
from tasks.evaluate.language.stage import DOCUMENTS, language_modelling
from tasks.evaluate.learning_curves.report import write_curves
from tasks.evaluate.learning_curves.snapshots import is_snapshot, tokens_of
from tasks.evaluate.other_models.hosted import is_hosted
from tasks.evaluate.other_models.models import check_here as check_named
from tasks.evaluate.other_models.models import in_transformers, named_models
from tasks.evaluate.other_models.models import sources as named_sources
from tasks.evaluate.safety.all_models import check_here as check_safety
from tasks.evaluate.safety.all_models import measure_safety
from tasks.evaluate.safety.all_models import sources as of_safety
from tasks.evaluate.safety.config import SafetyConfig
from tasks.evaluate.safety.rows import safety_rows, safety_tasks
from tasks.evaluate.score.stage import ITEMS, SCORE, score
from tasks.evaluate.side_by_side.answers import answers, load_answers
from tasks.evaluate.side_by_side.compare import check_here as side_by_side_check
from tasks.evaluate.side_by_side.compare import side_by_side
from tasks.evaluate.side_by_side.compare import sources as prompts_of
from tasks.evaluate.side_by_side.config import AnswersConfig, PromptsConfig
from tasks.evaluate.side_by_side.prompts import prompts
from tasks.evaluate.subsets import Dirty, check_asked, find_dirty, split
from tasks.significance.answered import Answered
from tasks.significance.gates import gate_digests, gate_references, judge_gates, write_results
from tasks.significance.gates import rows as gate_rows
from tasks.significance.scores import compared, judged, score_rows, verdict
from tasks.stage import stage
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.chain import BASE, LINKS
from tasks.training.model_folder import check_tokenizer

ORDER = (BASE, *LINKS)


def check_here(config: EvaluateConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a GPU that this machine has not, before the first stage of a run starts."""
    check_device_here(runtime)
    check_samples(config)
    check_files(config.language)
    check_named(config.models)
    check_safety(config.safety, runtime)
    if config.side_by_side:
        side_by_side_check(config.side_by_side, runtime)


def sources(config: EvaluateConfig) -> dict[str, str]:
    """Digests of the files that the profile names, and of evaluations that gates name."""
    named = {**fingerprints(config.language), **prompts_of(config.side_by_side), **of_safety(config.safety)}
    named |= named_sources(config.models)
    return {**named, **gate_digests(config.gates)} if config.gates else named


@stage(version=6, runtime=("compute", "data", "endpoint"), sources=sources, check_here=check_here)
def evaluate(
    config: EvaluateConfig,
    models: Mapping[str, Artifact],
    judge: Artifact | None,
    validation: Artifact,
    benchmarks: Artifact,
    contamination: Artifact | None,
    training: Artifact | None,
    documents: Artifact | None,
    out: Output,
) -> None:
    """Benchmarks by lm-evaluation-harness, bits per byte on held-out text, and answers side by side, of each model.

    Each model and benchmark is an artifact of its own (`score`), and so are what a model makes of held-out text
    (`language_modelling`) and its answers. The models are listed in the pipeline's order, others after them by name.
    Writes scores.json and scores.md, items/ with a line a question for each model and benchmark, language/ with a page
    a model, and answers.md, in which all answer the same prompts; a score within two standard errors of chance is
    marked as such. Questions whose text occurs in the training documents, as the filter found (`contamination`), are
    dirty: they and the clean ones are also scored separately. `validation` holds token shards; or it is the benchmarks
    again, where a profile starts from a base and has none. Snapshots of pretraining (`base@500`) are drawn as
    curves over tokens, in along.md, and are no columns of the table. `config.models` are measured like links, with
    their own tokenizers; safety is measured of the links alone. `judge` is the reward model that compares answers.
    """
    if not models:
        raise ConfigError("There is no model to evaluate.", "Give the stage at least one, by name.")
    models = {name: models[name] for name in sorted(models, key=_place)}
    digest = check_tokenizer(next(iter(models.values())).path)
    for model in models.values():
        check_tokenizer(model.path, expected=digest)
    links = {name: model for name, model in models.items() if not is_snapshot(name)}
    models |= named_models(config.models, links, validation, out)
    asked = chosen(config, benchmarks)
    language = _language(config, models, digest, validation, out)
    scores = _scored(config, models, asked, language, contamination, out)
    if snapshots := [name for name in models if is_snapshot(name)]:
        along = {name: tokens_of(model) for name, model in models.items() if name in (*links, *snapshots)}
        write_curves(scores, language, along, out)
    shown = [name for name in models if name not in snapshots]
    _write(scores, shown, out, of="questions" if validation.digest == benchmarks.digest else "documents")
    if config.safety:
        _safety(config.safety, links, (validation, training, documents), scores, out)
    if config.gates:
        _judge(config, out)
    talking = {name: models[name] for name in shown if in_transformers(models[name])}
    if config.prompts:
        _write_answers(config, talking, out)
    if config.side_by_side:
        side_by_side(config.side_by_side, talking, judge, out, config.prompts)


def _place(name: str) -> tuple[int, str]:
    return ORDER.index(name) if name in ORDER else len(ORDER), name


def _scored(
    config: EvaluateConfig,
    models: Mapping[str, Artifact],
    asked: Mapping[str, Chosen],
    language: Mapping[str, Any],
    contamination: Artifact | None,
    out: Output,
) -> dict[str, Any]:
    """The scores of all models as scores.json has them. An endpoint is asked only what is answered in text."""
    calls = {
        f"{name}/{label}": (one.config, (model, one.data))
        for name, model in models.items()
        for label, one in asked.items()
        if one.wants_text or not is_hosted(model)
    }
    made = out.obtain_all(score, calls)
    dirty = find_dirty(contamination.path, config.dirty_share) if contamination else {}
    return {
        "models": {
            name: {
                "bits_per_byte": language[name]["bits_per_byte"] if name in language else None,
                "tasks": {
                    label: _score(made[f"{name}/{label}"], one, dirty, out, f"{name}/{label}")
                    for label, one in asked.items()
                    if f"{name}/{label}" in made
                },
            }
            for name in models
        }
    }


def _language(
    config: EvaluateConfig, models: Mapping[str, Artifact], digest: str, validation: Artifact, out: Output
) -> Any:
    """What each model makes of held-out text; its page and plots are taken over. An endpoint says nothing of it. The
    tokenizer of the chain has the `digest`."""
    first = next(iter(models.values()))
    of_text = {name: model for name, model in models.items() if not is_hosted(model)}
    others = {name for name, model in of_text.items() if check_tokenizer(model.path) != digest}
    made = out.obtain_all(
        language_modelling,
        {name: (config.language, (it, validation, first if name in others else None)) for name, it in of_text.items()},
    )
    found = {}
    for name, artifact in made.items():
        folder = out.path / "language" / name
        folder.mkdir(parents=True)
        for pattern in ("language.*", "*.png", DOCUMENTS):
            for path in artifact.files(pattern):
                shutil.copyfile(path, folder / path.name)
        found[name] = json.loads((folder / "language.json").read_text(encoding="utf-8"))["held_out"]
    return found


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
    told = judged(found, split(items, found["headline"], known))
    asked = {"shots": found["shots"], "chat": one.config.chat, "generation": one.config.generation}
    version = json.dumps(found["versions"], sort_keys=True)
    return {**told, "data_digest": one.data.digest, "version": version, "asked": asked}


def _safety(
    config: SafetyConfig,
    models: Mapping[str, Artifact],
    text: tuple[Artifact, Artifact | None, Artifact | None],
    scores: dict[str, Any],
    out: Output,
) -> None:
    """Safety of each model: a table of its own, and scores like those of benchmarks, for gates and comparisons."""
    found = measure_safety(config, models, *text, out)
    rows = safety_rows(found)
    out.table("Safety", rows)
    with (out.path / "scores.md").open("a", encoding="utf-8") as page:
        page.write(f"\n## Safety\n\n{markdown_table(rows)}\n")
    for name in models:
        tasks = safety_tasks(Artifact.at(out.path / "safety" / name))
        scores["models"][name]["tasks"] |= {task: score for task, (score, _) in tasks.items()}
    (out.path / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")


def _judge(config: EvaluateConfig, out: Output) -> None:
    """Whether the gates are met; a release asks, so that what was measured is kept either way."""
    before = {ref: Answered.of(artifact, ref) for ref, artifact in gate_references(config.gates).items()}
    results = judge_gates(config.gates, Answered.read(out.path, "this evaluation"), before)
    write_results(results, out.path)
    out.table("Gates", gate_rows(results))
    failed = sum(not result.passed for result in results)
    if failed:
        out.warn(f"{failed} of {len(results)} gates are not met: there will be no release")


def _write_answers(config: EvaluateConfig, models: Mapping[str, Artifact], out: Output) -> None:
    """What all models answer to the same prompts, greedily."""
    asked = out.obtain(prompts, PromptsConfig(prompts=config.prompts))
    greedy = AnswersConfig(max_new_tokens=config.answer_tokens)
    made = out.obtain_all(answers, {name: (greedy, (asked, model)) for name, model in models.items()})
    given = {name: [str(row["answer"]) for row in load_answers(artifact)] for name, artifact in made.items()}
    rows = compared(config.prompts, given)
    (out.path / "answers.md").write_text(
        f"# Answers\n\nGreedy, through the chat template.\n\n{markdown_table(rows)}\n", encoding="utf-8"
    )
    out.table("Answers", rows)


def _write(scores: dict[str, Any], names: list[str], out: Output, of: str) -> None:
    """scores.json of all models; the table has those of `names`."""
    shown = {"models": {name: scores["models"][name] for name in names}}
    rows = score_rows(shown)
    (out.path / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    text_of = {"questions": "the questions with their right answers", "documents": "held-out documents"}[of]
    note = f"± is one standard error. Bits per byte of {text_of}."
    text = f"# Scores\n\n{markdown_table(rows)}\n\n{note} {verdict(shown)}\n"
    (out.path / "scores.md").write_text(text, encoding="utf-8")
    out.table("Scores", rows)
    measured = {name: model["bits_per_byte"] for name, model in shown["models"].items()}
    bits = ", ".join(f"{name} {value:.3f}" for name, value in measured.items() if value is not None)
    out.count(scores=scores["models"], summary=f"bits per byte: {bits}")
