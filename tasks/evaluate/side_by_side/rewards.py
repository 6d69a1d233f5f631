"""The stage `answer_rewards`: the rewards that the profile's reward model gives a model's answers. Its child is
reward.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, make_again
from storage.shards.lines import read_json_lines
from tasks.children.devices import check_device_here
from tasks.children.spec import ChildSpec
from tasks.children.supervise import run_module
from tasks.evaluate.side_by_side.items import ANSWERS
from tasks.stage import stage
from tasks.stage.config import StageConfig
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.model_folder import check_tokenizer

FILE = "rewards.jsonl"


class RewardsConfig(StageConfig):
    """No settings: a reward depends only on the answer and the judge."""


class RewardsSpec(ChildSpec):
    """The child's settings."""

    answers: Path
    judge: Path


def check_here(config: RewardsConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a missing GPU."""
    check_device_here(runtime)


@stage(version=1, part_of="evaluate", runtime=("compute",), check_here=check_here)
def answer_rewards(config: RewardsConfig, answers: Artifact, judge: Artifact, out: Output) -> None:
    """Write rewards.jsonl, a row for each answer: `id`, `sample`, `reward`, read at the end of the conversation through
    the reward model's chat template. A conversation longer than its context counts by its end."""
    check_tokenizer(judge.path)
    spec = RewardsSpec(
        runtime=out.runtime,
        answers=(answers.path / ANSWERS).resolve(),
        judge=judge.path.resolve(),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        out.progress(line["done"], line["total"], "answers")

    result = run_module("tasks.evaluate.side_by_side.reward", spec, out, on_line=on_line, ranks=False, keeps="nothing")
    rows = list(read_json_lines(out.path / FILE))
    mean = sum(row["reward"] for row in rows) / len(rows)
    out.count(answers=len(rows), overlong=result["overlong"], reward_mean=round(mean, 6))
    out.count(summary=f"{len(rows):,} answers, mean reward {mean:.3f}")
    out.fact(**result["facts"])


def load_rewards(artifact: Artifact) -> list[float]:
    """The rewards, in the order of the answers. Raises DamagedArtifact for a file without valid rewards."""
    try:
        rewards = [float(row["reward"]) for row in read_json_lines(artifact.path / FILE)]
        if not all(map(math.isfinite, rewards)):
            raise ValueError("a reward isn't finite")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedArtifact(f"{artifact.path / FILE} is damaged: {error}.", make_again("answer_rewards")) from error
    return rewards
