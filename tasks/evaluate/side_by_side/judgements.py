"""The stage `judgements`: an endpoint compares the answers of two models. Its child is judge.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, EmptyOutput, make_again
from storage.shards.lines import read_json_lines
from tasks.children.spec import ChildSpec
from tasks.children.supervise import run_module
from tasks.evaluate.side_by_side.config import JudgementsConfig
from tasks.evaluate.side_by_side.items import ANSWERS
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

FILE = "judgements.jsonl"
SECTION = "evaluate.side_by_side.judge_endpoint"
# How a comparison ended: without a judge, by both orders alike, by orders that disagree, or not at all
PLAIN = ("equal_answers", "empty_answer")
DECIDED = ("agreed", "orders_disagree", *PLAIN)


class JudgementsSpec(ChildSpec):
    """The child's settings, with the answers of the first and of the second model."""

    config: JudgementsConfig
    first: Path
    second: Path


def check_here(config: JudgementsConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a missing key or a bad address."""
    from tasks.endpoint.client import address_of, api_key

    address_of(config.endpoint, SECTION)
    api_key(config.endpoint, SECTION)


@stage(version=1, part_of="evaluate", runtime=("compute", "endpoint"), check_here=check_here)
def judgements(config: JudgementsConfig, first: Artifact, second: Artifact, out: Output) -> None:
    """Judge two models by their answers to the same prompts (Zheng et al. 2023, "Judging LLM-as-a-Judge"): each pair of
    answers is shown in both orders, and an answer wins if both orders name it. Otherwise they tie.

    Writes judgements.jsonl, a row for each prompt and sample: `id`, `sample`, `winner` (1 the first, 0 the second, 0.5,
    or null without a judgement), `state` (why), lengths in characters, and the transcript in `questions`. Equal answers
    tie and an empty one loses, without a question to the judge. A killed stage continues, and never pays twice.
    """
    spec = JudgementsSpec(
        config=config,
        runtime=out.runtime,
        first=(first.path / ANSWERS).resolve(),
        second=(second.path / ANSWERS).resolve(),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], line["total"], "comparisons")

    out.progress(0, 1, "comparisons", "starting")
    result = run_module("tasks.evaluate.side_by_side.judge", spec, out, on_line=on_line, ranks=False, keeps="answers")
    rows = load_judgements(Artifact(folder=out.path, digest=""))
    states = Counter(row["state"] for row in rows)
    dropped = {state: number for state, number in sorted(states.items()) if state not in DECIDED}
    missing = sum(dropped.values())
    if missing == len(rows) or missing > config.max_dropped_share * len(rows):
        raise EmptyOutput(
            f"{missing:,} of {len(rows):,} comparisons lack a judgement ({dropped}).",
            f"Set {SECTION} to a model that answers with one letter, or raise evaluate.side_by_side.judge_tokens or "
            "max_dropped_share.",
        )
    out.account(what="comparisons", documents_in=len(rows), kept=len(rows) - missing, removed=dropped)
    out.count(states=dict(sorted(states.items())), **bias_of(rows))
    out.count(summary=f"{len(rows) - missing:,} of {len(rows):,} comparisons judged")
    out.fact(**result["facts"])


def bias_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How often the judge named the answer in first and in second place, and how often it named the same place in both
    orders of a comparison."""
    said = Counter(question["said"] for row in rows for question in row["questions"] if not question["fault"])
    both = Counter(
        row["questions"][0]["said"]
        for row in rows
        if row["state"] == "orders_disagree" and len({question["said"] for question in row["questions"]}) == 1
    )
    asked = sum(bool(row["questions"]) for row in rows)
    return {
        "asked_in_both_orders": asked,
        "said_first": said["A"],
        "said_second": said["B"],
        "said_tie": said["C"],
        "always_first": both["A"],
        "always_second": both["B"],
    }


def load_judgements(artifact: Artifact) -> list[dict[str, Any]]:
    """The rows of the artifact. Raises DamagedArtifact for a file without valid rows."""
    try:
        rows = list(read_json_lines(artifact.path / FILE))
        if not all(row["winner"] in (0, 0.5, 1, None) and isinstance(row["questions"], list) for row in rows):
            raise ValueError("a row lacks a winner")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedArtifact(f"{artifact.path / FILE} is damaged: {error}.", make_again("judgements")) from error
    return rows
