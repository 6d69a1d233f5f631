"""The child of the stage `top_tokens`: `python -m tasks.posttrain.top_tokens.ask SPEC` asks about each row once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from models.pretrained import context_of, load_config
from models.tokenizer import load_tokenizer
from storage.errors import ConfigError
from storage.shards.lines import write_json_lines
from tasks.children.child import emit, run_as_child
from tasks.endpoint.paid import ANSWERS, KEPT, PaidAnswers
from tasks.endpoint.prompts import TokenSender, Vocabulary, key_of, tokens_of
from tasks.posttrain.config import max_length_of
from tasks.posttrain.rows.instruction import render_instruction
from tasks.posttrain.rows.prepare import prepare, read_rows
from tasks.posttrain.top_tokens.stage import TopTokensSpec
from tasks.posttrain.top_tokens.table import asked_of

SECTION = "distill.endpoint"
REMEDY = (
    "Choose a teacher with the same vocabulary, or learn its answers: a link best_of_n with this endpoint, n: 1 and "
    "rewards: [], before sft."
)


def run(path: Path) -> None:
    """Write answers/ and the result."""
    spec = TopTokensSpec.model_validate_json(path.read_text())
    config, endpoint = spec.config, spec.config.endpoint
    tokenizer, model = load_tokenizer(spec.model), load_config(spec.model)
    if endpoint.top_k > model.vocab_size:
        raise ConfigError(
            f"{SECTION}.top_k is {endpoint.top_k:,}, but the vocabulary has {model.vocab_size:,} tokens.", "Lower it."
        )
    max_length = max_length_of("distill", config, context_of(model))
    rows, _, dropped = prepare(
        read_rows(spec.rows),
        lambda row, length: {"id": row["id"], **render_instruction(row, tokenizer, length)},
        max_length,
        validation_share=0.0,
        max_dropped_share=1.0,  # the training checks the limit
        what="instructions",
    )
    texts = {key_of(endpoint, asked): asked for row in rows if (asked := asked_of(row, row["id"]))}
    paid = PaidAnswers(spec.scratch / KEPT, spec.known)
    vocabulary = Vocabulary(tokenizer, model.vocab_size, REMEDY)
    sender = TokenSender(endpoint, SECTION, spec.runtime.endpoint, paid, vocabulary, max_length)
    masses: list[Any] = []  # by the teacher, of the likeliest of each token of a row

    def tell() -> None:
        emit(done=len(masses), rows=len(texts), problem=sender.problem)

    for _, answer in sender.ask(texts, tell):
        assert answer is not None
        _, logs = tokens_of(answer, endpoint.top_k)
        masses.append(np.exp(logs.astype(float)).sum(1))
        tell()
    kept = ({"asked": key, **answer} for key in texts if (answer := paid.get(key)) is not None)
    write_json_lines(spec.out / ANSWERS / "00000.jsonl", kept)
    counted = {name: paid.total(name) for name in ("prompt_tokens", "completion_tokens")}
    facts: dict[str, float] = {"requests": len(paid), "requests_repeated": sender.repeated, **counted}
    if spec.runtime.endpoint.price is not None:
        facts["cost"] = round(spec.runtime.endpoint.price.of(*counted.values()), 6)
    spec.finish(
        {
            "kept": len(rows),
            "dropped": dict(sorted(dropped.items())),
            "tokens": sum(map(len, masses)),
            "covered_share": float(np.concatenate(masses).mean()),
            "facts": facts,
        }
    )


if __name__ == "__main__":
    run_as_child(run)
