"""The stage's side of post-training, the same for every method: check the inputs, run the child, report."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from models.kernels.virtual_tokens import virtual_tokens
from models.pretrained import load_config
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.children.supervise import run_module
from tasks.posttrain.check import processes_of, row_share
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method
from tasks.posttrain.rewards.outside import report_rewards
from tasks.posttrain.rollouts.mismatch import report_rollouts
from tasks.posttrain.rows.duplicates import drop_duplicates, split_rows
from tasks.posttrain.rows.prepare import reasons_for_dropping, warning_of
from tasks.posttrain.rows.row_sources import Pairs, digest_of, files_of
from tasks.posttrain.spec import PosttrainSpec
from tasks.stage.decorator import STAGES
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tasks.training.model_folder import check_tokenizer
from tasks.training.plots import plot_loss, plot_measures, plot_parts
from tasks.training.recovery.less_memory import run_with_less
from tasks.training.recovery.remote_checkpoints import fetch_newest


def posttrain(
    method: Method[Any],
    config: PosttrainConfig,
    model: Artifact,
    pairs: Pairs,
    out: Output,
    *,
    teacher: Artifact | None = None,
    judge: Artifact | None = None,
    reference: Path | None = None,
    top_tokens: Artifact | None = None,
) -> None:
    """Train `model` on the JSON Lines of `pairs`, and write model/, log.jsonl and a curve as PNG to `out`. `teacher`
    and `judge` are models, `reference` is a file of log-probabilities (see reference/), and `top_tokens` is what a
    teacher elsewhere answered (see top_tokens/).

    Raises TokenizerMismatch for a teacher or a judge with another tokenizer or chat template.
    """
    method.check_runtime(config, out.runtime)
    digest = check_tokenizer(model.path)
    if virtual_tokens(load_config(model.path)):
        raise ConfigError(
            f"{method.name} can't train a model with virtual tokens: they aren't part of its weights.",
            "Start from the model that they were trained over.",
        )
    decisive = f"{method.name} {config.model_dump_json()} {model.digest} {digest_of(pairs)}"
    for other in filter(None, (teacher, judge)):
        check_tokenizer(other.path, expected=digest)
        decisive += f" {other.digest}"
    decisive += f" {top_tokens.digest}" if top_tokens else ""
    digests = dict(STAGES[method.name].fingerprints(config))  # those of the key, whatever was written since
    decisive += "".join(f" {name} {digest}" for name, digest in sorted(digests.items()))
    split_files = split_rows(files_of(pairs), method.rows, out)
    rows, duplicates = drop_duplicates(split_files, config.deduplicate, out)
    spec = PosttrainSpec(
        method=method.name,
        config=config.model_dump(mode="json"),
        runtime=out.runtime,
        model=model.path.resolve(),
        base=f"sha256:{model.digest}",
        rows=[path.resolve() for path in rows],
        teacher=teacher and teacher.path.resolve(),
        judge=judge and judge.path.resolve(),
        reference=reference and reference.resolve(),
        top_tokens=top_tokens and top_tokens.path.resolve(),
        digests=digests,
        identity=hashlib.sha256(decisive.encode()).hexdigest(),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
        remote=out.remote,
    )
    fetch_newest(spec, out.note)
    out.progress(0, 1, "steps", "starting")

    def on_line(line: dict[str, Any]) -> None:
        if "note" in line:
            return out.note(line["note"])
        at = f"validating, batch {line['batch']:,}" if "batch" in line else f"{method.curve} {line[method.curve]:.2f}"
        out.progress(line["step"], line["steps"], "steps", at)

    def run(spec: PosttrainSpec) -> dict[str, Any]:
        return run_module("tasks.posttrain.train", spec, out, on_line=on_line)

    share = row_share(method.name, config, out.runtime, processes_of(out.runtime) or 1)
    result = run_with_less(spec, out, share, run, recomputes=not config.virtual_tokens)
    log = read_log(out.path / "log.jsonl")
    first = [{"step": 0, **result["held_out"]["before"]}] if result["held_out"] else []
    unit = f"loss ({method.loss_unit})" if method.curve == "loss" else method.curve
    plot_loss([*first, *log], out.path / f"{method.curve}.png", title=method.name, unit=unit, measure=method.curve)
    plot_parts([*first, *log], out.path / "rewards.png", method.measures_of(config).values())
    if method.drawn:
        plot_measures([*first, *log], out.path / "measures.png", title=method.name, measures=method.drawn)
    _report(method, log, [*first, *log], result, duplicates, out)
    report_rollouts(result["facts"], out)
    report_rewards(method.measures_of(config).values(), log, result["facts"], out)
    for folder in (spec.checkpoints, spec.faults):
        shutil.rmtree(folder, ignore_errors=True)


def _report(
    method: Method[Any],
    log: list[dict[str, Any]],
    validated: list[dict[str, Any]],
    result: dict[str, Any],
    duplicates: Counter[str],
    out: Output,
) -> None:
    out.fact(**result["facts"])
    if "tokens_per_second" in result["facts"]:
        out.fact_table("Speed", _speed(result["facts"]))
    pairs, dropped = result["pairs"] + duplicates.total(), {**result["dropped"], **duplicates}
    out.account(documents_in=pairs, kept=pairs - sum(dropped.values()), removed=dropped)
    last = [row[method.curve] for row in log[-max(1, min(20, len(log) // 10)) :]]
    measures = {f"train_{method.curve}": round(sum(last) / len(last), 6), **_validations(method, validated, out)}
    change = (result["held_out"] or {}).get("change", {})
    measures |= change
    out.count(steps=len(log), supervised_share=round(result["supervised_share"], 4), **measures)
    out.count(precision=result["precision"])
    if method.report is not None:
        method.report(result["measured"], out)
    summary = [_pairs_summary(result, Counter(dropped), pairs), f"{len(log):,} step{'s' * (len(log) != 1)}"]
    if warning := warning_of(Counter(dropped), pairs, result["max_length"]):
        out.warn(warning)
    if split := result["split"]:
        out.count(split_pairs=split["rows"], parts=split["parts"])
    if adapter := result["adapter"]:
        out.count(**adapter)
        virtual = f", in {adapter['virtual_tokens']:,} virtual tokens" if "virtual_tokens" in adapter else ""
        summary.append(f"{adapter['trainable_share']:.2%} of the parameters trained{virtual}")
    curves = (f"{of}_{method.curve}" for of in ("train", "initial_validation", "validation"))
    for name in (*curves, *method.summary):
        if name in out.counts:
            summary.append(f"{name.replace('_', ' ')} {out.counts[name]:.2f}")
    if "validation_loss_change_low" in change:
        low, high = change["validation_loss_change_low"], change["validation_loss_change_high"]
        summary.append(
            f"{change['validation_loss_change']:+.3f} by the training (95 % interval {low:+.3f} to {high:+.3f})"
        )
    first, last_loss = measures.get("initial_validation_loss"), measures.get("validation_loss")
    if first is not None and last_loss is not None and last_loss > first:
        summary.append("worse on held-out pairs than before the training")
    if measures.get("best_validation_step", len(log)) != len(log):
        best = measures[f"best_validation_{method.curve}"]
        summary.append(f"best validation {method.curve} {best:.2f} at step {measures['best_validation_step']}")
    out.count(summary=", ".join(summary))
    numbers = {"pairs": pairs, "trained on": result["train"], "held out": result["validation"]}
    numbers |= {f"dropped: {reason}": count for reason, count in sorted(dropped.items())}
    numbers |= {"split": split["rows"], "parts of these": split["parts"]} if split else {}
    numbers |= {"steps": len(log), "supervised share of tokens": f"{result['supervised_share']:.1%}"}
    numbers |= {
        name.replace("_", " "): f"{value:.4f}" if isinstance(value, float) else value
        for name, value in measures.items()
    }
    if adapter:
        numbers["parameters trained"] = f"{adapter['trained_parameters']:,} of {adapter['parameters']:,}"
        if (difference := adapter.get("merged_logit_difference")) is not None:
            numbers["largest difference of a logit, merged"] = f"{difference:.1e}"
        else:
            numbers["virtual tokens before every text"] = adapter["virtual_tokens"]
    out.table(out.stage.upper(), [{"measure": name, "value": value} for name, value in numbers.items()])


def _speed(facts: dict[str, Any]) -> list[dict[str, str]]:
    rows = {
        "tokens per second": f"{facts['tokens_per_second']:,.0f}",
        "supervised tokens per second": f"{facts['supervised_tokens_per_second']:,.0f}",
        "rows": f"{facts['rows']:,}",
        "padding": f"{facts['padding_share']:.2%}",
    }
    return [{"measure": name, "value": value} for name, value in rows.items()]


def _pairs_summary(result: dict[str, Any], dropped: Counter[str], pairs: int) -> str:
    """`51 of 100 pairs (2 held out, 47 longer than 128 tokens)`."""
    held_out = [f"{result['validation']:,} held out"] * bool(result["validation"])
    others = ", ".join([*held_out, *reasons_for_dropping(dropped, result["max_length"])])
    return f"{result['train']:,} of {pairs:,} pairs ({others})" if others else f"{pairs:,} pairs"


def _validations(method: Method[Any], rows: list[dict[str, Any]], out: Output) -> dict[str, float]:
    """The measures of the last validation, and the best value of the method's curve with its step. Writes a table of
    all validations, including that before the first step."""
    curve = f"validation_{method.curve}"
    validated = [
        {name: round(value, 6) for name, value in row.items() if name == "step" or name.startswith("validation_")}
        for row in rows
        if curve in row
    ]
    if not validated:
        return {}
    out.table("Validation", [{name.removeprefix("validation_"): row[name] for name in row} for row in validated])
    best = (min if method.curve == "loss" else max)(validated, key=lambda row: row[curve])
    extremes = {f"best_{curve}": best[curve], "best_validation_step": best["step"]}
    if validated[0]["step"] == 0:
        extremes[f"initial_{curve}"] = validated[0][curve]
    return {name: value for name, value in validated[-1].items() if name != "step"} | extremes
