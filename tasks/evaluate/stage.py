"""The `evaluate` stage: measures any number of models on the same questions, in one table."""

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
from tasks.evaluate.language.stage import language_modelling
from tasks.evaluate.learning_curves.report import write_curves
from tasks.evaluate.learning_curves.snapshots import is_snapshot, tokens_of
from tasks.evaluate.other_models.hosted_model import is_hosted
from tasks.evaluate.other_models.models import check_here as check_named
from tasks.evaluate.other_models.models import in_transformers, named_models
from tasks.evaluate.other_models.models import sources as named_sources
from tasks.evaluate.safety.all_models import check_here as check_safety
from tasks.evaluate.safety.all_models import measure_safety
from tasks.evaluate.safety.all_models import sources as of_safety
from tasks.evaluate.safety.config import SafetyConfig
from tasks.evaluate.safety.rows import safety_rows, safety_tasks
from tasks.evaluate.score.stage import SCORE, score
from tasks.evaluate.side_by_side.answers import answers, load_answers
from tasks.evaluate.side_by_side.compare import check_here as side_by_side_check
from tasks.evaluate.side_by_side.compare import side_by_side
from tasks.evaluate.side_by_side.compare import sources as prompts_of
from tasks.evaluate.side_by_side.config import AnswersConfig, PromptsConfig
from tasks.evaluate.side_by_side.prompts import prompts
from tasks.evaluate.subsets import Dirty, check_asked, find_dirty, split
from tasks.significance.answered import OF_TASK, Answered
from tasks.significance.gates import gate_digests, gate_references, judge_gates, write_results
from tasks.significance.gates import rows as gate_rows
from tasks.significance.scores import compared, judged, score_rows, verdict
from tasks.significance.texts import DOCUMENTS
from tasks.stage import stage
from tasks.stage.display.pages import markdown_table
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.chain import BASE, LINKS
from tasks.training.model_folder import check_tokenizer

ORDER = (BASE, *LINKS)


def check_here(config: EvaluateConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a missing GPU and bad settings, SourceError for bad files, before the first stage of a run
    starts."""
    check_device_here(runtime)
    check_samples(config)
    check_files(config.language)
    check_named(config.models)
    check_safety(config.safety, runtime)
    if config.side_by_side:
        side_by_side_check(config.side_by_side, runtime)


def sources(config: EvaluateConfig) -> dict[str, str]:
    """Digests of the files that the profile names, and of evaluations in gates."""
    named = {**fingerprints(config.language), **prompts_of(config.side_by_side), **of_safety(config.safety)}
    named |= named_sources(config.models)
    return {**named, **gate_digests(config.gates)} if config.gates else named


@stage(version=9, runtime=("compute", "data", "endpoint"), sources=sources, check_here=check_here)
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
    """Measure benchmarks by lm-evaluation-harness, bits per byte on held-out text, and answers side by side, for each
    model.

    Each model and benchmark has its own artifact (`score`), and so have a model's results on held-out text
    (`language_modelling`) and its answers. The models are listed in the pipeline's order, others after them by name.
    Writes scores.json and scores.md, items/ with a line per question for each model and benchmark, language/ with a
    page per model, and answers.md with all answers to the same prompts. A score within two standard errors of chance is
    marked as such. Questions whose text the filter found in the training documents (`contamination`) are dirty: they
    and the clean ones are also scored separately. `validation` holds token shards, or the benchmarks again if a profile
    starts from a base and so has none. Snapshots of pretraining (`base@500`) are drawn as curves over tokens, in
    along.md, not as columns of the table. `config.models` are measured like links, with their own tokenizers, except
    for safety, which is measured only for links. `judge` is the reward model that compares answers.
    """
    if not models:
        raise ConfigError("The stage evaluate needs a model.", "Give it at least one, by name.")
    models = {name: models[name] for name in sorted(models, key=_place)}
    digest = check_tokenizer(next(iter(models.values())).path)
    for model in models.values():
        check_tokenizer(model.path, expected=digest)
    links = {name: model for name, model in models.items() if not is_snapshot(name)}
    models |= named_models(config.models, links, validation, out)
    benchmarks_by_label = chosen(config, benchmarks)
    language = _language(config, models, digest, validation, out)
    scores = _scores(config, models, benchmarks_by_label, language, contamination, out)
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


def _scores(
    config: EvaluateConfig,
    models: Mapping[str, Artifact],
    benchmarks: Mapping[str, Chosen],
    language: Mapping[str, Any],
    contamination: Artifact | None,
    out: Output,
) -> dict[str, Any]:
    """The scores of all models as in scores.json. An endpoint only gets benchmarks answered in text."""
    calls = {
        f"{name}/{label}": (one.config, (model, one.data))
        for name, model in models.items()
        for label, one in benchmarks.items()
        if one.wants_text or not is_hosted(model)
    }
    artifacts = out.obtain_all(score, calls)
    dirty = find_dirty(contamination.path, config.dirty_share) if contamination else {}
    return {
        "models": {
            name: {
                "bits_per_byte": language[name]["bits_per_byte"] if name in language else None,
                "tasks": {
                    label: _score(artifacts[f"{name}/{label}"], one, dirty, out, f"{name}/{label}")
                    for label, one in benchmarks.items()
                    if f"{name}/{label}" in artifacts
                },
            }
            for name in models
        }
    }


def _language(
    config: EvaluateConfig, models: Mapping[str, Artifact], digest: str, validation: Artifact, out: Output
) -> Any:
    """The results of each model on held-out text, except endpoints. Copies its page and plots. `digest` is that of the
    chain's tokenizer."""
    first = next(iter(models.values()))
    of_text = {name: model for name, model in models.items() if not is_hosted(model)}
    others = {name for name, model in of_text.items() if check_tokenizer(model.path) != digest}
    artifacts = out.obtain_all(
        language_modelling,
        {name: (config.language, (it, validation, first if name in others else None)) for name, it in of_text.items()},
    )
    results = {}
    for name, artifact in artifacts.items():
        folder = out.path / "language" / name
        folder.mkdir(parents=True)
        for pattern in ("language.*", "*.png", DOCUMENTS):
            for path in artifact.files(pattern):
                shutil.copyfile(path, folder / path.name)
        results[name] = json.loads((folder / "language.json").read_text(encoding="utf-8"))["held_out"]
    return results


def _score(artifact: Artifact, one: Chosen, dirty: Mapping[str, Dirty], out: Output, name: str) -> dict[str, Any]:
    """The score of a model in a benchmark. Copies its items."""
    result = json.loads((artifact.path / SCORE).read_text(encoding="utf-8"))
    items = [*read_json_lines(artifact.path / OF_TASK)]
    target = out.path / "items" / f"{name}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json_lines(target, items)
    known = dirty.get(one.config.task)
    if known is not None:
        check_asked(one.config.task, (str(item["id"]) for item in items), known)
    scored = judged(result, split(items, result["headline"], known))
    asked = {"shots": result["shots"], "chat": one.config.chat, "generation": one.config.generation}
    version = json.dumps(result["versions"], sort_keys=True)
    return {**scored, "data_digest": one.data.digest, "version": version, "asked": asked}


def _safety(
    config: SafetyConfig,
    models: Mapping[str, Artifact],
    text: tuple[Artifact, Artifact | None, Artifact | None],
    scores: dict[str, Any],
    out: Output,
) -> None:
    """Measure the safety of each model, as a separate table and as scores like those of benchmarks, for gates and
    comparisons."""
    rows = safety_rows(measure_safety(config, models, *text, out))
    out.table("Safety", rows)
    with (out.path / "scores.md").open("a", encoding="utf-8") as page:
        page.write(f"\n## Safety\n\n{markdown_table(rows)}\n")
    for name in models:
        tasks = safety_tasks(Artifact.at(out.path / "safety" / name))
        scores["models"][name]["tasks"] |= {task: score for task, (score, _) in tasks.items()}
    (out.path / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")


def _judge(config: EvaluateConfig, out: Output) -> None:
    """Judge the gates. Only a release fails on them, so that the measurements are kept either way."""
    before = {ref: Answered.of(artifact, ref) for ref, artifact in gate_references(config.gates).items()}
    results = judge_gates(config.gates, Answered.read(out.path, "this evaluation"), before)
    write_results(results, out.path)
    out.table("Gates", gate_rows(results))
    failed = sum(not result.passed for result in results)
    if failed:
        out.warn(f"{failed} of {len(results)} gates are not met, so export will refuse to release")


def _write_answers(config: EvaluateConfig, models: Mapping[str, Artifact], out: Output) -> None:
    """Write the greedy answers of all models to the same prompts."""
    questions = out.obtain(prompts, PromptsConfig(prompts=config.prompts))
    greedy = AnswersConfig(max_new_tokens=config.answer_tokens)
    artifacts = out.obtain_all(answers, {name: (greedy, (questions, model)) for name, model in models.items()})
    texts = {name: [str(row["answer"]) for row in load_answers(artifact)] for name, artifact in artifacts.items()}
    rows = compared(config.prompts, texts)
    (out.path / "answers.md").write_text(
        f"# Answers\n\nGreedy, through the chat template.\n\n{markdown_table(rows)}\n", encoding="utf-8"
    )
    out.table("Answers", rows)


def _write(scores: dict[str, Any], names: list[str], out: Output, of: str) -> None:
    """Write scores.json with all models, and the table with those of `names`."""
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
