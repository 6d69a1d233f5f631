"""The stage `answers`: the answers of one model or endpoint to the prompts, which don't depend on any other model. Its
child is generate.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, make_again
from storage.shards.lines import read_json_lines
from tasks.children.devices import check_device_here
from tasks.children.run_many import run_several
from tasks.children.spec import ChildSpec
from tasks.endpoint.reply import counted
from tasks.evaluate.side_by_side.config import AnswersConfig
from tasks.evaluate.side_by_side.items import ANSWERS
from tasks.evaluate.side_by_side.prompts import FILE as PROMPTS_FILE
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.model_folder import check_tokenizer

SECTION = "evaluate.side_by_side.endpoints"


class AnswersSpec(ChildSpec):
    """The child's settings."""

    config: AnswersConfig
    prompts: Path
    model: Path | None


def check_here(config: AnswersConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a missing GPU or key, and for a bad address."""
    from tasks.endpoint.client import address_of, api_key

    if config.endpoint is None:
        check_device_here(runtime)
    else:
        address_of(config.endpoint, SECTION)
        api_key(config.endpoint, SECTION)


Call = tuple[AnswersConfig, Sequence[Artifact | None], Output]


def _together(calls: Sequence[Call]) -> Iterator[int]:
    """Asks all models in one child, one after another."""
    work = []
    for config, (prompts, model), out in calls:
        assert prompts is not None
        work.append((_spec(config, prompts, model, out), out))

    def on_line(done: float, line: dict[str, Any]) -> None:
        calls[0][2].progress(done, len(calls), "models")

    calls[0][2].progress(0, len(calls), "models", "starting")
    for number, result in run_several("tasks.evaluate.side_by_side.generate", work, on_line=on_line, keeps="answers"):
        _count(result, calls[number][2], hosted=calls[number][0].endpoint is not None)
        yield number


@stage(version=2, part_of="evaluate", runtime=("compute", "endpoint"), check_here=check_here, together=_together)
def answers(config: AnswersConfig, prompts: Artifact, model: Artifact | None, out: Output) -> None:
    """Write answers.jsonl, a row for each prompt and sample in their order: `id`, `sample`, `prompt` (its messages),
    `answer`, `tokens`, `ended` (by itself, not at the maximum of tokens) and `fault`, which is `refused` if an endpoint
    refused the prompt. A killed stage continues after its last batch, and never pays for an answer twice.
    """
    for _ in _together([(config, (prompts, model), out)]):
        pass


def _spec(config: AnswersConfig, prompts: Artifact, model: Artifact | None, out: Output) -> AnswersSpec:
    if model is not None:
        check_tokenizer(model.path)
    return AnswersSpec(
        config=config,
        runtime=out.runtime,
        prompts=(prompts.path / PROMPTS_FILE).resolve(),
        model=model.path.resolve() if model is not None else None,
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )


def _count(result: dict[str, Any], out: Output, *, hosted: bool) -> None:
    """Count the answers that a child wrote. Raises EmptyOutput for an endpoint without any answer."""
    rows = list(read_json_lines(out.path / ANSWERS))
    refused = sum(row["fault"] == "refused" for row in rows)
    if hosted:
        counted((row["fault"] or ("" if row["answer"] else "empty") for row in rows), SECTION)
    ended = sum(row["ended"] for row in rows)
    out.account(what="answers", documents_in=len(rows), kept=len(rows) - refused, removed={"refused": refused})
    tokens = sum(row["tokens"] for row in rows)
    out.count(
        ended=ended,
        empty=sum(not row["answer"] for row in rows) - refused,
        tokens=tokens,
        summary=f"{len(rows):,} answers, {tokens / len(rows):.0f} tokens each, {ended / len(rows):.0%} ended",
    )
    out.fact(**result["facts"])


def load_answers(artifact: Artifact) -> list[dict[str, Any]]:
    """The rows of the artifact. Raises DamagedArtifact for a file without valid rows."""
    try:
        rows = list(read_json_lines(artifact.path / ANSWERS))
        if not rows or not all(
            isinstance(row["id"], str) and isinstance(row["answer"], str) and row["prompt"] and "sample" in row
            for row in rows
        ):
            raise ValueError("a row lacks a field")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedArtifact(f"{artifact.path / ANSWERS} is damaged: {error}.", make_again("answers")) from error
    return rows
