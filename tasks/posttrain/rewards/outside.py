"""Rewards from outside: a user's function, a sandbox, an endpoint. What they read, what they need, and how they start.

No torch: a plan and the checks before a run's first stage call this.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.digest_cache import remembered_digest
from storage.errors import ConfigError
from storage.shards.lines import as_line, read_json_lines
from tasks.children.child import emit
from tasks.posttrain.rewards.config import JudgeReward, ProgramReward, PythonReward, Reward
from tasks.posttrain.rewards.score import Answer, Rewarder, Scorer
from tasks.posttrain.rows.form import Row
from tasks.stage import user_function
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

if TYPE_CHECKING:
    from tasks.posttrain.reward_model.model import Judge

TRIED = 2  # rows that a function is called with before anything is trained
KEPT, NOTED = 20, 3  # failures that are recorded, and those that the log of a run shows at once
ASKED = ("requests", "requests_repeated", "prompt_tokens", "completion_tokens", "cost")  # facts about endpoints
FAILURES = "failed-rewards.jsonl"  # in the scratch folder


def fingerprints(rewards: Sequence[Reward]) -> dict[str, str]:
    """Digests of users' functions and rubrics. Raises SourceError if one is missing."""
    from tasks.posttrain.rewards.rubric import rubric_of

    found: dict[str, str] = {}
    for reward in rewards:
        if isinstance(reward, PythonReward):
            found |= user_function.fingerprints(reward)
        elif isinstance(reward, JudgeReward):
            rubric_of(reward)
            found[reward.rubric] = remembered_digest(Path(reward.rubric).expanduser())
    return found


def check_here(rewards: Sequence[Reward], section: str) -> None:
    """Check this machine before the first stage of a run starts. Raises SourceError for a function that can't be loaded
    and a rubric that can't be read, ConfigError for a missing key, an invalid address and too weak a sandbox."""
    from tasks.endpoint.client import address_of, api_key
    from tasks.posttrain.rewards.function import FunctionReward
    from tasks.sandbox.levels import means_for

    fingerprints(rewards)
    for reward in rewards:
        if isinstance(reward, PythonReward):
            FunctionReward(reward).check()
        elif isinstance(reward, ProgramReward):
            means_for(reward.sandbox)
        elif isinstance(reward, JudgeReward):
            address_of(reward.endpoint, f"{section}.rewards.{reward.title}.endpoint")
            api_key(reward.endpoint, f"{section}.rewards.{reward.title}.endpoint")


def check_rows(rewards: Sequence[Reward], train: Sequence[Row], held_out: Sequence[Row], section: str) -> None:
    """Raises ConfigError for a pattern that matches no reference, for a field that no row has, and for tests that are
    no source, SourceError for a function that fails on the references of the first rows held out."""
    from tasks.posttrain.rewards.function import FunctionReward
    from tasks.posttrain.rewards.unit_tests import sources_of

    Scorer(rewards).check_references([row["reference"] for row in train], section)
    dear = [reward for reward in rewards if reward.needs or isinstance(reward, PythonReward)]
    fields = [json.loads(row["fields"]) for row in (*train, *held_out)] if dear else []
    having = Counter(name for each in fields for name, value in each.items() if value is not None)
    for reward in dear:
        if missing := [name for name in reward.needs if not having[name]]:
            raise ConfigError(
                f"The reward {reward.title} needs the field {missing[0]}, which none of {len(fields):,} rows of "
                f"instructions has. They have {', '.join(sorted(having)) or 'none'}.",
                f"Keep it: `fields: [{missing[0]}]` of their source in download.sources, or correct the name.",
            )
        if isinstance(reward, ProgramReward):
            for each in fields:
                sources_of(reward, each)
        if isinstance(reward, PythonReward):
            rows = (held_out or train)[:TRIED]
            FunctionReward(reward).check([_answered(row) for row in rows])


def _answered(row: Row) -> Answer:
    return Answer(row["prompt"], row["reference"], 1, row["reference"], json.loads(row["fields"]))


def open_scorer(
    rewards: Sequence[Reward], judge: Judge | None, digests: Mapping[str, str], runtime: Runtime, scratch: Path
) -> Scorer:
    """The scorer of these rewards. `digests` are those of the artifact's key. Opinions of judges and the first failures
    are kept in the scratch folder."""
    from tasks.posttrain.rewards.function import FunctionReward
    from tasks.posttrain.rewards.rubric import RubricJudge, rubric_of
    from tasks.posttrain.rewards.unit_tests import PassedTests

    others: dict[str, Rewarder] = {}
    judges: list[RubricJudge] = []
    for reward in rewards:
        if isinstance(reward, PythonReward):
            own = {name: digests[name] for name in user_function.fingerprints(reward)}
            others[reward.title] = FunctionReward(reward, own)
        elif isinstance(reward, ProgramReward):
            others[reward.title] = PassedTests(reward)
        elif isinstance(reward, JudgeReward):
            rubric = rubric_of(reward, digests[reward.rubric])
            judges.append(RubricJudge(reward, rubric, runtime.endpoint, scratch))
            others[reward.title] = judges[-1]

    def facts() -> dict[str, float]:
        asked = [judge.facts() for judge in judges]
        return {name: sum(each[name] for each in asked) for name in (asked[0] if asked else ())}

    return Scorer(rewards, judge, others, _Failures(scratch / FAILURES), facts)


def report_rewards(
    measures: Iterable[str], log: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], out: Output
) -> None:
    """Count the answers of a training that a reward failed for or said nothing of, name the first failures, and tell
    what endpoints were asked."""
    asked = [{"measure": name.replace("_", " "), "number": facts[name]} for name in ASKED if name in facts]
    if asked:
        out.fact_table("Endpoint", asked)
    totals = {
        name: int(sum(row.get(name, 0) for row in log)) for name in measures if name.endswith(("_failed", "_none"))
    }
    out.count(**totals)
    path = out.scratch / FAILURES
    failures = list(read_json_lines(path)) if path.exists() else []
    if failures:
        out.fact_table("Rewards that failed", failures)
        failed = sum(number for name, number in totals.items() if name.endswith("_failed"))
        out.warn(f"rewards failed for {failed:,} answers of the training, such as {failures[0]['error']}")


class _Failures:
    """Writes the first failures to a file, and tells the run of the very first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept = list(read_json_lines(path)) if path.exists() else []

    def __call__(self, name: str, answer: Answer, why: str) -> None:
        """Add a failure, unless there are enough or it is there from before a resume."""
        row: dict[str, Any] = {"reward": name, "answer": " ".join(answer.text.split())[:80], "error": why}
        if len(self.kept) >= KEPT or row in self.kept:
            return
        self.kept.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(as_line(row))
        if len(self.kept) <= NOTED:
            emit(note=f"the reward {name} failed for the answer {row['answer']!r}: {why}")
