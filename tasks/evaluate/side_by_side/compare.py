"""Compares models side by side: their answers, a judge's comparisons, and the standings.

Answers, judgements and rewards are their own artifacts, so one more model, or another baseline, only costs new ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from storage.artifact import Artifact
from storage.errors import EmptyOutput
from storage.shards.lines import write_json_lines
from tasks.evaluate.side_by_side.answers import answers, load_answers
from tasks.evaluate.side_by_side.config import PromptsConfig, SideBySideConfig, names_of
from tasks.evaluate.side_by_side.items import Item, of_judgements, of_rewards, refused
from tasks.evaluate.side_by_side.judgements import bias_of, judgements, load_judgements
from tasks.evaluate.side_by_side.prompts import check_prompts, fingerprint, prompts
from tasks.evaluate.side_by_side.rates.standings import Pair, Standings, standings
from tasks.evaluate.side_by_side.report import as_json, markdown_page, model_rows, pair_rows
from tasks.evaluate.side_by_side.rewards import RewardsConfig, answer_rewards, load_rewards
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

FOLDER = "side_by_side"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class SideBySide:
    """The results. Without a judge, standings are None. `bias` counts how an endpoint judged, `left_out` the
    comparisons without a result, by pair."""

    answers: dict[str, Rows]
    standings: Standings | None
    bias: dict[str, int]
    left_out: dict[Pair, int]


def sources(config: SideBySideConfig | None) -> dict[str, str]:
    """The SHA-256 of the file of prompts, for the key of the comparing stage. Raises SourceError."""
    return fingerprint(PromptsConfig(file=config.file)) if config and config.file else {}


def check_here(config: SideBySideConfig, runtime: Runtime) -> None:
    """Raises ConfigError for a missing key or a bad address of an endpoint, and SourceError for a file of prompts that
    can't be read or has a bad line, before the first stage of a run starts."""
    from tasks.endpoint.client import address_of, api_key

    if config.file is not None:
        check_prompts(PromptsConfig(file=config.file))
    named = {f"endpoints.{name}": endpoint for name, endpoint in config.endpoints.items()}
    if config.judge_endpoint is not None:
        named["judge_endpoint"] = config.judge_endpoint
    for name, endpoint in named.items():
        address_of(endpoint, f"evaluate.side_by_side.{name}")
        api_key(endpoint, f"evaluate.side_by_side.{name}")


def pairs_of(names: Sequence[str], baseline: str | None) -> list[Pair]:
    """The pairs to compare: all pairs, or each model with the baseline."""
    return [(name, baseline) for name in names if name != baseline] if baseline else list(combinations(names, 2))


def side_by_side(
    config: SideBySideConfig,
    models: Mapping[str, Artifact],
    judge: Artifact | None,
    out: Output,
    usual_prompts: Sequence[str] = (),
) -> SideBySide:
    """Compare `models` (model folders) and the endpoints of the config. `judge` is the folder of the reward model, and
    `usual_prompts` are used if the config has none.

    Writes side_by_side/answers.jsonl, side_by_side/comparisons.jsonl, side_by_side/standings.json and side_by_side.md,
    and passes the tables to `out`. Raises ConfigError as `names_of` does, and EmptyOutput for two models without any
    comparison.
    """
    names = names_of(config, list(models), judge=judge is not None)
    chosen = PromptsConfig(file=config.file, prompts=[] if config.file else list(config.prompts or usual_prompts))
    questions = out.obtain(prompts, chosen)
    artifacts = {name: _answers(config, name, questions, models, out) for name in names}
    rows = {name: load_answers(artifact) for name, artifact in artifacts.items()}
    compared, bias = _comparisons(config, artifacts, rows, judge, out)
    left_out = {pair: len(rows[pair[0]]) - len(items) for pair, items in compared.items()}
    for pair, items in compared.items():
        if not items:
            raise EmptyOutput(
                f"No two answers of {' and '.join(pair)} could be compared.", "Use other prompts, or leave one out."
            )
    ranking = None
    if compared:
        ranking = standings(compared, baseline=config.baseline, resamples=config.resamples, seed=config.seed)
    result = SideBySide(rows, ranking, bias, left_out)
    _write(config, result, compared, out)
    return result


def _answers(
    config: SideBySideConfig, name: str, questions: Artifact, models: Mapping[str, Artifact], out: Output
) -> Artifact:
    return out.obtain(
        answers, config.answers(config.endpoints.get(name)), questions, models.get(name), name=f"answers.{name}"
    )


def _comparisons(
    config: SideBySideConfig,
    artifacts: Mapping[str, Artifact],
    answered: Mapping[str, Rows],
    judge: Artifact | None,
    out: Output,
) -> tuple[dict[Pair, list[Item]], dict[str, int]]:
    pairs = pairs_of(list(artifacts), config.baseline) if config.judge != "none" else []
    if config.judge == "reward":
        assert judge is not None
        rewards = {
            name: load_rewards(out.obtain(answer_rewards, RewardsConfig(), one, judge, name=f"answer_rewards.{name}"))
            for name, one in artifacts.items()
        }
        return {
            (one, other): of_rewards(answered[one], answered[other], [rewards[one], rewards[other]])
            for one, other in pairs
        }, {}
    compared, bias = {}, dict[str, int]()
    for first, second in pairs:
        obtained = out.obtain(
            judgements, config.judgements(), artifacts[first], artifacts[second], name=f"judgements.{first}.{second}"
        )
        rows = load_judgements(obtained)
        compared[first, second] = of_judgements(rows)
        for measure, number in bias_of(rows).items():
            bias[measure] = bias.get(measure, 0) + number
    return compared, bias


def _write(config: SideBySideConfig, result: SideBySide, compared: Mapping[Pair, list[Item]], out: Output) -> None:
    folder, names = out.path / FOLDER, list(result.answers)
    write_json_lines(folder / "answers.jsonl", merged(result.answers))
    if result.standings is None:
        return
    write_json_lines(
        folder / "comparisons.jsonl",
        (
            {"first": first, "second": second, **vars(item)}
            for (first, second), items in compared.items()
            for item in items
        ),
    )
    numbers = as_json(result.standings, result.bias, result.left_out)
    (folder / "standings.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    by_model = model_rows(result.standings, result.answers, names, config.baseline)
    by_pair = pair_rows(result.standings, result.left_out)
    (out.path / "side_by_side.md").write_text(markdown_page(config, by_model, by_pair, result.bias), encoding="utf-8")
    out.table("Side by side", by_model)
    out.table("Pairs", by_pair)
    out.count(side_by_side=numbers)


def merged(answered: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """A row for each prompt and sample, with the answers of all models by name, except refused ones."""
    return [
        {
            "id": rows[0]["id"],
            "sample": rows[0]["sample"],
            "prompt": rows[0]["prompt"],
            "answers": {name: row["answer"] for name, row in zip(answered, rows, strict=True) if not refused(row, row)},
        }
        for rows in zip(*answered.values(), strict=True)
    ]
