"""The `feedback` stage: preferences that a model gives, under written principles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from storage.artifact import Artifact
from storage.shards.lines import read_json_lines
from tasks.children.devices import check_device_here
from tasks.children.supervise import run_module
from tasks.posttrain.feedback.config import FeedbackConfig, fingerprint, principles_of
from tasks.posttrain.rows.row_sources import files_of
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.model_folder import check_tokenizer

SHOWN = 3  # pairs in the table
# Reasons why a prompt gave no pair. The table lists them even with a count of 0
REVISED = ("equal_answers", "empty", "unfinished", "overlong", "refused")
JUDGED = ("orders_disagree", "unclear", "circular", *REVISED)


def check_here(config: FeedbackConfig, runtime: Runtime) -> None:
    """Check this machine before the first stage of a run starts. Raises ConfigError for a missing GPU or key and for an
    invalid address, SourceError for principles that can't be read."""
    from tasks.endpoint.client import address_of, api_key

    principles_of(config)
    if config.asks_model:
        check_device_here(runtime)
    if config.endpoint is not None:
        address_of(config.endpoint, "feedback.endpoint")
        api_key(config.endpoint, "feedback.endpoint")


@stage(version=2, runtime=("compute", "endpoint"), sources=fingerprint, check_here=check_here)
def feedback(config: FeedbackConfig, model: Artifact | None, instructions: Artifact, out: Output) -> None:
    """Preferences as in Constitutional AI (Bai et al. 2022): an answer and its revision by a principle, or the best and
    the worst of sampled answers by a judge's choice. Without a `model`, an endpoint does everything.

    Writes preferences/pairs.jsonl, in the format of `download`'s preferences, and transcripts.jsonl with all requests
    and replies. Killed at any instant, it resumes after its last whole batch, and never pays an endpoint twice for the
    same answer.
    """
    from tasks.posttrain.feedback.run import FeedbackSpec

    if model is not None:
        check_tokenizer(model.path)
    spec = FeedbackSpec(
        config=config,
        principles=principles_of(config),
        runtime=out.runtime,
        model=model.path.resolve() if model is not None else None,
        rows=files_of(instructions),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], line["prompts"], "prompts")

    out.progress(0, 1, "prompts", "starting")
    result = run_module("tasks.posttrain.feedback.run", spec, out, on_line=on_line, ranks=False, keeps="answers")
    removed = {**result["left_out"], **result["dropped"]}
    total = result["asked"] + sum(result["left_out"].values())
    out.account(what="conversations", documents_in=total, kept=result["pairs"], removed=removed)
    _report(result, JUDGED if config.mode == "judge" else REVISED, out)


def _report(result: dict[str, Any], reasons: Sequence[str], out: Output) -> None:
    totals = {name: result[name] for name in ("asked", "answered", "pairs")}
    compared = result["comparisons"]
    out.count(**totals, dropped=result["dropped"], **({"comparisons": compared} if compared else {}))
    out.fact(**result["facts"])
    names = {"asked": "prompts asked", "answered": "answered", "pairs": "pairs"}
    rows = [{"measure": names[name], "number": number} for name, number in totals.items()]
    rows += [{"measure": f"no pair: {_words(name)}", "number": result["dropped"].get(name, 0)} for name in reasons]
    rows += [{"measure": f"comparisons: {_words(name)}", "number": number} for name, number in compared.items()]
    out.table("Feedback", rows)
    if result["facts"]:
        rows = [{"measure": _words(name), "number": number} for name, number in result["facts"].items()]
        out.fact_table("Endpoint", rows)
    transcripts = read_json_lines(out.path / "transcripts.jsonl")
    shown = [one for one in transcripts if not one["dropped"]][:SHOWN]
    out.table(
        "Pairs",
        [
            {"prompt": _short(one["prompt"][-1]["content"])}
            | {name: _short(one[name]) for name in ("principle", "chosen", "rejected")}
            for one in shown
        ],
    )
    agreed = ""
    if compared:
        agreed = f", both orders agree in {compared.get('agreed', 0):,} of {_total(compared):,} comparisons"
    out.count(summary=f"{result['pairs']:,} pairs from {result['asked']:,} prompts{agreed}")


def _total(compared: dict[str, int]) -> int:
    return sum(number for name, number in compared.items() if not name.startswith("said_"))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:119]}…"
