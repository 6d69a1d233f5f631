"""The stage `top_tokens`: what a teacher behind an endpoint holds for the likeliest in the place of each learned token.

It has an artifact of its own, so that another learning rate pays nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from tasks.children.spec import ChildSpec
from tasks.children.supervise import run_module
from tasks.endpoint.paid import known_answers
from tasks.posttrain.rows.duplicates import drop_duplicates
from tasks.posttrain.rows.row_sources import files_of
from tasks.posttrain.top_tokens.config import TopTokensConfig
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.training.model_folder import check_tokenizer


class TopTokensSpec(ChildSpec):
    """Written as JSON by the stage. `known` are files with answers of earlier artifacts."""

    config: TopTokensConfig
    model: Path
    rows: list[Path]
    known: list[Path]


@stage(version=1, part_of="distill", runtime=("compute", "data", "endpoint"))
def top_tokens(config: TopTokensConfig, model: Artifact, instructions: Artifact, out: Output) -> None:
    """The `top_k` likeliest tokens of an endpoint's model in the place of each learned token of the instructions, with
    their log-probabilities.

    Writes answers/: those of the endpoint, by the keys of their requests. Rows that can't be trained on are dropped and
    counted, as in the training. An answer is never paid for twice: it is kept as it comes, and taken from other
    artifacts of this stage, finished or not.
    """
    check_tokenizer(model.path)
    rows, duplicates = drop_duplicates(files_of(instructions), config.deduplicate, out)
    spec = TopTokensSpec(
        config=config,
        runtime=out.runtime,
        model=model.path.resolve(),
        rows=[path.resolve() for path in rows],
        known=[path.resolve() for path in known_answers(out.ever_made(), out.unfinished(), out.warn)],
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], line["rows"], "rows", line["problem"])

    out.progress(0, 1, "rows", "starting")
    result = run_module("tasks.posttrain.top_tokens.ask", spec, out, on_line=on_line, ranks=False, keeps="answers")
    removed = Counter(result["dropped"]) + duplicates
    kept, tokens, covered = (result[name] for name in ("kept", "tokens", "covered_share"))
    out.account(what="conversations", documents_in=kept + removed.total(), kept=kept, removed=removed)
    out.fact(**result["facts"])
    likeliest = f"whose likeliest {config.endpoint.top_k:,} have {covered:.1%} of the teacher's probability"
    out.count(tokens=tokens, covered_share=round(covered, 6), summary=f"{tokens:,} tokens, {likeliest}")
