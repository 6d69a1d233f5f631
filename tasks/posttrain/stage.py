"""The stage's side of post-training: checks the join, starts the child, reports. `sft` and `dpo` call it."""

from __future__ import annotations

import shutil
from typing import Any, Literal

from storage.artifact import Artifact
from tasks.children.supervise import run_module
from tasks.posttrain.config import PosttrainConfig
from tasks.stage.output import Output
from tasks.training.logs import read_log
from tasks.training.model_folder import check_tokenizer
from tasks.training.plots import plot_loss

UNITS = {"sft": "loss (nats a token)", "dpo": "loss (nats a pair)"}
MEASURES = {
    "eval_loss": "validation_loss",
    "eval_mean_token_accuracy": "validation_token_accuracy",
    "eval_rewards/accuracies": "validation_preference_accuracy",
    "eval_rewards/margins": "validation_reward_margin",
}


def posttrain(
    method: Literal["sft", "dpo"], config: PosttrainConfig, model: Artifact, pairs: Artifact, out: Output
) -> None:
    """Train `model` on the JSON Lines of `pairs`; leave model/, log.jsonl and loss.png in `out`."""
    from tasks.posttrain.spec import PosttrainSpec

    check_tokenizer(model.path)
    rows = pairs.files("*.jsonl")
    spec = PosttrainSpec(
        method=method,
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        model_digest=model.digest,
        rows=[path.resolve() for path in rows],
        rows_digest=pairs.digest,
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    out.progress(0, 1, "steps", "starting")

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["step"], line["steps"], "steps", f"loss {line['loss']:.2f}")

    result = run_module("tasks.posttrain.train", spec, out, on_line=on_line)
    log = read_log(out.path / "log.jsonl")
    plot_loss(log, out.path / "loss.png", title=method, unit=UNITS[method])
    _report(log, result, out)
    shutil.rmtree(spec.checkpoints, ignore_errors=True)


def _report(log: list[dict[str, Any]], result: dict[str, Any], out: Output) -> None:
    out.fact(**result["facts"])
    out.account(documents_in=result["pairs"], kept=result["train"] + result["validation"], removed=result["dropped"])
    last = [row["loss"] for row in log[-max(1, min(20, len(log) // 10)) :]]
    measures = {"train_loss": round(sum(last) / len(last), 6)}
    measures |= {
        ours: round(result["measured"][theirs], 6) for theirs, ours in MEASURES.items() if theirs in result["measured"]
    }
    out.count(steps=len(log), supervised_share=round(result["supervised_share"], 4), **measures)
    told = [f"{result['train']:,} pairs"]
    for name in ("train_loss", "validation_loss", "validation_preference_accuracy"):
        if name in measures:
            told.append(f"{name.replace('_', ' ')} {measures[name]:.2f}")
    out.count(summary=", ".join(told))
    numbers = {"pairs": result["pairs"], "trained on": result["train"], "held out": result["validation"]}
    numbers |= {f"dropped: {reason}": count for reason, count in result["dropped"].items()}
    numbers |= {"steps": len(log), "supervised share of tokens": f"{result['supervised_share']:.1%}"}
    numbers |= {name.replace("_", " "): f"{value:.4f}" for name, value in measures.items()}
    out.table(out.stage.upper(), [{"measure": name, "value": value} for name, value in numbers.items()])
