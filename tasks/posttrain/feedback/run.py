"""The child of `feedback`: `python -m tasks.posttrain.feedback.run SPEC` collects replies and writes pairs.

Transcripts are kept in the scratch folder after every batch, so a killed run resumes from the last. Batches are the
same each time, as padding changes the last digits of what a model computes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from storage.errors import EmptyOutput
from storage.shards.lines import write_json_lines
from storage.shards.saved_batches import kept_rows
from tasks.children.child import emit, run_as_child
from tasks.children.spec import ChildSpec
from tasks.endpoint.client import Asked, Endpoint
from tasks.endpoint.paid import PaidAnswers
from tasks.posttrain.feedback.config import FeedbackConfig
from tasks.posttrain.feedback.judge import judge_answers, verdicts
from tasks.posttrain.feedback.prompts import Transcript, draw_prompts, pair_id
from tasks.posttrain.feedback.revise import revise_answers
from tasks.posttrain.feedback.speaker import Speaker
from tasks.posttrain.rows.prepare import by_reason

BATCH = 16  # prompts between two writes


class FeedbackSpec(ChildSpec):
    """Written as JSON by the stage."""

    config: FeedbackConfig
    principles: list[str]
    model: Path | None
    rows: list[Path]


def run(path: Path) -> None:
    """Write preferences/pairs.jsonl, transcripts.jsonl and the counts."""
    spec = FeedbackSpec.model_validate_json(path.read_text())
    config = spec.config
    drawn, left_out = draw_prompts(config, spec.rows)
    prompts = [
        {"id": row["id"], "prompt": row["messages"][:-1], "principle": principle}
        for row, principle in zip(drawn, cycle(spec.principles), strict=False)
    ]
    paid = PaidAnswers(spec.scratch / "answers.jsonl")
    endpoint = _endpoint(spec, paid)
    model = _model(spec)
    answerer, other = model or endpoint, endpoint or model
    assert answerer is not None
    assert other is not None
    transcripts: list[Transcript] = []
    for start in range(0, len(prompts), BATCH):
        batch = prompts[start : start + BATCH]
        kept = spec.scratch / "transcripts" / f"{start:08d}.jsonl"
        transcripts += kept_rows(kept, len(batch), functools.partial(_transcripts, config, answerer, other, batch))
        emit(done=len(transcripts), prompts=len(prompts))
    pairs = [_pair(one) for one in transcripts if not one["dropped"]]
    dropped = Counter(one["dropped"] for one in transcripts if one["dropped"])
    if not pairs or dropped.total() > config.max_dropped_share * len(transcripts):
        raise EmptyOutput(
            f"{dropped.total():,} of {len(transcripts):,} prompts gave no pair ({by_reason(dropped)}).",
            "Start from a model that was tuned to answer, or raise feedback.max_new_tokens if answers are unfinished"
            f"{', or raise feedback.max_dropped_share' if pairs else ''}. The replies are in "
            f"{spec.scratch / 'transcripts'}.",
        )
    write_json_lines(spec.out / "preferences" / "pairs.jsonl", pairs)
    write_json_lines(spec.out / "transcripts.jsonl", transcripts)
    facts: dict[str, float] = {"requests": len(paid), "requests_repeated": endpoint.repeated} if endpoint else {}
    tokens = {name: paid.total(name) for name in ("prompt_tokens", "completion_tokens")} if endpoint else {}
    if endpoint and spec.runtime.endpoint.price is not None:
        facts["cost"] = round(spec.runtime.endpoint.price.of(*tokens.values()), 6)
    spec.finish(
        {
            "asked": len(transcripts),
            "answered": sum(one["answered"] for one in transcripts),
            "pairs": len(pairs),
            "dropped": dict(sorted(dropped.items())),
            "left_out": dict(sorted(left_out.items())),
            "comparisons": _compared(transcripts),
            "facts": {**facts, **tokens},
        }
    )


def _endpoint(spec: FeedbackSpec, paid: PaidAnswers) -> Endpoint | None:
    config = spec.config
    if config.endpoint is None:
        return None
    asked = Asked(config.max_new_tokens, config.temperature, config.seed, "feedback.endpoint")
    return Endpoint(config.endpoint, asked, spec.runtime.endpoint, paid)


def _model(spec: FeedbackSpec) -> Speaker | None:
    """The chain's model, if it gets any request. Imports torch only then."""
    if spec.model is None:
        return None
    from tasks.posttrain.feedback.local import LocalModel

    return LocalModel.load(spec.model, spec.config, spec.runtime)


def _transcripts(
    config: FeedbackConfig, answerer: Speaker, other: Speaker, prompts: Sequence[Transcript]
) -> list[Transcript]:
    """A transcript of each prompt."""
    if config.mode == "revise":
        return revise_answers(prompts, answerer, other)
    return judge_answers(config, prompts, answerer, other)


def _compared(transcripts: Sequence[Transcript]) -> dict[str, int]:
    """Counts of the judge's replies: how often both orders agreed, or why not, and how often each letter was named."""
    states = Counter(state for one in transcripts for state, _ in verdicts(one.get("questions", ())).values())
    letters = Counter(
        question["said"] for one in transcripts for question in one.get("questions", ()) if not question["fault"]
    )
    return {**dict(sorted(states.items())), "said_A": letters["A"], "said_B": letters["B"]} if states else {}


def _pair(one: Transcript) -> dict[str, Any]:
    chosen, rejected = ([{"role": "assistant", "content": one[name]}] for name in ("chosen", "rejected"))
    return {
        "id": pair_id(one["id"]),
        "source": "feedback",
        "prompt": one["prompt"],
        "chosen": chosen,
        "rejected": rejected,
    }


if __name__ == "__main__":
    run_as_child(run)
