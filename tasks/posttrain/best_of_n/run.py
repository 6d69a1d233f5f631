"""The child of `best_of_n`: `python -m tasks.posttrain.best_of_n.run SPEC` collects answers, rewards and chooses them.

Answers with their rewards are kept in the scratch folder after every batch, so a killed run resumes from the last.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from storage.errors import EmptyOutput
from storage.shards.lines import write_json_lines
from storage.shards.saved_batches import kept_rows
from tasks.children.child import emit, run_as_child
from tasks.children.spec import ChildSpec
from tasks.endpoint.paid import ANSWERS, KEPT, PaidAnswers
from tasks.posttrain.best_of_n.answerer import Answerer, Model, Remote
from tasks.posttrain.best_of_n.choose import decision, instruction_of, pair_of
from tasks.posttrain.best_of_n.config import BestOfNConfig
from tasks.posttrain.feedback.prompts import draw_prompts
from tasks.posttrain.rewards.outside import check_rows, open_scorer
from tasks.posttrain.rewards.score import Scorer, answer_to
from tasks.posttrain.rewards.watch import check_failures
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.prepare import by_reason

BATCH = 16  # prompts between two writes


class BestOfNSpec(ChildSpec):
    """Written as JSON by the stage. `known` are files with answers of earlier artifacts."""

    config: BestOfNConfig
    model: Path | None
    judge: Path | None
    rows: list[Path]
    known: list[Path]
    digests: dict[str, str] = Field(default_factory=dict)


def run(path: Path) -> None:
    """Write instructions/, preferences/, transcripts.jsonl, answers/ of an endpoint, and the result."""
    spec = BestOfNSpec.model_validate_json(path.read_text())
    config = spec.config
    drawn, left_out = draw_prompts(config, spec.rows)
    rows = [_row(one) for one in drawn]
    if config.rewards:
        check_rows(config.rewards, rows, [], "best_of_n")
    paid = PaidAnswers(spec.scratch / KEPT, spec.known)
    remote = Remote(config, spec.runtime, paid) if spec.model is None else None
    answerer: Answerer = remote or Model(spec.model, config, spec.runtime)
    scorer = _scorer(spec)
    transcripts: list[dict[str, Any]] = []
    counts: list[dict[str, float]] = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        kept = spec.scratch / "transcripts" / f"{start:08d}.jsonl"
        answered = functools.partial(_answered, config, answerer, scorer, batch)
        *found, counted = kept_rows(kept, len(batch) + 1, answered)
        transcripts += found
        counts.append(counted)
        check_failures(counts, config.rewards, "best_of_n")
        emit(done=len(transcripts), prompts=len(rows))
    made = [one for one in transcripts if not one["dropped"]]
    dropped = Counter(one["dropped"] for one in transcripts if one["dropped"])
    if not made or dropped.total() > config.max_dropped_share * len(transcripts):
        raise EmptyOutput(
            f"{dropped.total():,} of {len(transcripts):,} prompts gave nothing ({by_reason(dropped)}).",
            "Lower best_of_n.threshold or best_of_n.gap if answers earn too little. Raise best_of_n.max_new_tokens if "
            "they are unfinished, and lower it if prompts are overlong. "
            f"{'Or raise best_of_n.max_dropped_share. ' if made else ''}The answers are in "
            f"{spec.scratch / 'transcripts'}.",
        )
    instructions = [instruction_of(one) for one in transcripts if one["instruction"]]
    pairs = [pair_of(one) for one in transcripts if one["pair"]]
    write_json_lines(spec.out / "instructions" / "best.jsonl", instructions)
    write_json_lines(spec.out / "preferences" / "pairs.jsonl", pairs)
    write_json_lines(spec.out / "transcripts.jsonl", transcripts)
    facts = scorer.facts()
    if remote is not None:
        facts |= _endpoint_facts(spec, remote, paid, facts)
    spec.finish(
        {
            "asked": len(transcripts),
            "made": len(made),
            "instructions": len(instructions),
            "pairs": len(pairs),
            "dropped": dict(sorted(dropped.items())),
            "left_out": dict(sorted(left_out.items())),
            "counts": counts,
            "facts": facts,
        }
    )


def _row(row: Row) -> Row:
    """A prompt with its reference, as rewards take it."""
    fields = {name: value for name, value in row.items() if name not in ("id", "source", "messages")}
    *prompt, answer = row["messages"]
    return {"id": row["id"], "prompt": prompt, "reference": answer["content"], "fields": json.dumps(fields)}


def _scorer(spec: BestOfNSpec) -> Scorer:
    judge = None
    if spec.judge is not None:
        from tasks.children.devices import device_of
        from tasks.posttrain.reward_model.model import Judge

        judge = Judge.load(spec.judge, device_of(spec.runtime.compute))
    return open_scorer(spec.config.rewards, judge, spec.digests, spec.runtime, spec.scratch)


def _answered(config: BestOfNConfig, answerer: Answerer, scorer: Scorer, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A transcript of each row, and the counts of their rewards."""
    said = answerer.answers(rows)
    answers = [answer_to(row, one.text, one.tokens) for row, group in zip(rows, said, strict=True) for one in group]
    parts: Mapping[str, Sequence[float | None]] = {}
    sums: list[float | None] = [None] * len(answers)
    counts: dict[str, float] = {}
    if config.rewards:
        scores = scorer.score(answers)
        parts, sums, counts = scores.parts, scores.sums, scores.counts()
    places = iter(range(len(answers)))
    transcripts = []
    for row, group in zip(rows, said, strict=True):
        told = []
        for one in group:
            place = next(places)
            rewards = {name: values[place] for name, values in parts.items()} if len(parts) > 1 else {}
            told.append({**one._asdict(), "reward": sums[place], **({"rewards": rewards} if rewards else {})})
        found = decision(config, told)
        transcripts.append({"id": row["id"], "prompt": row["prompt"], "answers": told, **found})
    return [*transcripts, counts]


def _endpoint_facts(
    spec: BestOfNSpec, answerer: Remote, paid: PaidAnswers, rewarding: Mapping[str, float]
) -> dict[str, float]:
    """What the answers of the endpoint cost, beside what judges did. Writes the answers under their requests' keys."""
    kept = ({"asked": key, **answer} for key in answerer.used if (answer := paid.get(key)) is not None)
    write_json_lines(spec.out / ANSWERS / "00000.jsonl", kept)
    tokens = {name: paid.total(name) for name in ("prompt_tokens", "completion_tokens")}
    facts: dict[str, float] = {"requests": len(paid), "requests_repeated": answerer.endpoint.repeated, **tokens}
    if spec.runtime.endpoint.price is not None:
        facts["cost"] = round(spec.runtime.endpoint.price.of(*tokens.values()), 6)
    return {name: rewarding.get(name, 0) + value for name, value in facts.items()}


if __name__ == "__main__":
    run_as_child(run)
