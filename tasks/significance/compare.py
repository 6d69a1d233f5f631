"""Two evaluations side by side, task by task: which differences are real, corrected for the number of comparisons.

All rows of a comparison are one family: by Holm's correction (1979) the chance that any row is wrongly called a
difference is at most 2 %. At 5 %, a hundred comparisons of equal models would have more than five false alarms in two
cases of five. At 2 %, in two of a hundred.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from storage.errors import ConfigError
from tasks.significance.answered import Answered, Answers, TaskScore
from tasks.significance.estimate import LEVEL, Codes, Values, codes_of
from tasks.significance.paired import Paired, detectable, paired
from tasks.training.chain import BASE, LINKS

EQUAL = "no difference that could be told"
BETTER = ("A better", "B better")
DIGITS = 6
WRONGLY = 0.02  # the chance that any row is wrongly called a difference


class One(NamedTuple):
    """One model of an evaluation."""

    evaluation: Answered
    model: str

    @property
    def name(self) -> str:
        """The name that people see."""
        return f"{self.evaluation.name}:{self.model}"


class Row(NamedTuple):
    """One task of two models. `better` says which sign of the difference is an improvement."""

    first: One
    second: One
    task: str
    metric: str
    higher_is_better: bool
    found: Paired
    only_first: int
    only_second: int
    p: float  # corrected
    detectable: float | None
    verdict: str


class Left(NamedTuple):
    """A task that couldn't be compared, and why."""

    first: One
    second: One
    task: str
    why: str


class Comparison(NamedTuple):
    """The rows of all pairs, in their order, and the tasks that were left out."""

    rows: list[Row]
    left: list[Left]
    pairs: list[tuple[One, One]]


def compare(pairs: Sequence[tuple[One, One]], tasks: Sequence[str] = (), metric: str | None = None) -> Comparison:
    """Compare each pair of models on every task that both have, or only on `tasks` if any are named, by `metric` if
    given instead of each task's own. Raises ConfigError for a task that no model has, DamagedArtifact."""
    known = {task for pair in pairs for one in pair for task in one.evaluation.models[one.model].tasks}
    for task in tasks:
        if task not in known:
            raise ConfigError(f"No model was asked {task}.", f"There are {', '.join(sorted(known)) or 'no tasks'}.")
    matched: list[tuple[One, One, str, Match]] = []
    left: list[Left] = []
    for first, second in pairs:
        for task in sorted(set(tasks) or known):
            met = match(first, second, task, metric)
            if isinstance(met, str):
                left.append(Left(first, second, task, met))
            else:
                matched.append((first, second, task, met))
    founds = [paired(met.first, met.second, met.codes) for *_, met in matched]
    corrected = holm([found.p for found in founds])
    level = WRONGLY / max(1, sum(p > WRONGLY for p in corrected))  # at which Holm tested those not rejected
    rows = [
        Row(
            first,
            second,
            task,
            met.metric,
            met.higher_is_better,
            found,
            met.only_first,
            met.only_second,
            p,
            detectable(found, level),
            _verdict(found, p, met.higher_is_better),
        )
        for (first, second, task, met), found, p in zip(matched, founds, corrected, strict=True)
    ]
    return Comparison(rows, left, list(pairs))


def holm(ps: Sequence[float]) -> list[float]:
    """P-values corrected for their number, in the same order. Rejecting those below a level keeps the family's chance
    of a false alarm below it (Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure")."""
    corrected, reached = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        reached = max(reached, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = reached
    return corrected


class Match(NamedTuple):
    """The questions that two models share: scores of each, shape (questions,), and their clusters."""

    metric: str
    higher_is_better: bool
    first: Values
    second: Values
    codes: Codes
    only_first: int
    only_second: int


def match(first: One, second: One, task: str, metric: str | None = None) -> Match | str:
    """The questions of a task that both models answered, matched by id, or the reason why there are none."""
    scores = []
    for one in (first, second):
        score = one.evaluation.models[one.model].tasks.get(task)
        if score is None:
            return f"{one.name} was not asked this"
        scores.append(score)
    metric = metric or scores[0].metric
    if why := _differ(*scores):
        return why
    given: list[Answers] = []
    higher = []
    for one, score in zip((first, second), scores, strict=True):
        measured, answers = score.of(metric), one.evaluation.answers(one.model, task, metric)
        if answers is None:
            return f"{one.name} has no answers to single questions by {metric}"
        higher.append(score.higher_is_better if measured is None else measured.higher_is_better)
        given.append(answers)
    if higher[0] != higher[1]:
        return f"more {metric} is better for one and worse for the other"
    here, there = ({name: place for place, name in enumerate(answers.ids)} for answers in given)
    common = [name for name in given[0].ids if name in there]
    if not common:
        return f"they have no question in common: {len(here):,} and {len(there):,} others"
    mine, other = np.array([here[name] for name in common]), np.array([there[name] for name in common])
    clusters = [given[0].clusters[place] for place in mine]
    if clusters != [given[1].clusters[place] for place in other]:
        return "its questions are in other clusters"
    return Match(
        metric,
        higher[0],
        given[0].values[mine],
        given[1].values[other],
        codes_of(clusters),
        len(here) - len(common),
        len(there) - len(common),
    )


def chain_pairs(evaluation: Answered, model: str | None = None) -> list[tuple[One, One]]:
    """The models of one evaluation in pairs: each link of the chain with the one before it, and every other model with
    the chain's last, or all with `model` if given. Raises ConfigError if there is only one model, or `model` isn't
    there."""
    names = list(evaluation.models)
    if model is not None and model not in names:
        raise _no_model(evaluation, model)
    chain = [name for name in (BASE, *LINKS) if name in names] or names[:1]
    others = [name for name in names if name not in chain]
    if len(names) < 2:
        raise ConfigError(f"{evaluation.name} has only one model.", "Name a second evaluation to compare it with.")
    if model is not None:
        return [(One(evaluation, name), One(evaluation, model)) for name in names if name != model]
    found = [*pairwise(chain), *((other, chain[-1]) for other in others)]
    return [(One(evaluation, one), One(evaluation, two)) for one, two in found]


def pair_up(first: Answered, one: str | None, second: Answered, other: str | None) -> list[tuple[One, One]]:
    """The models of two evaluations in pairs: the named ones, else the only ones, else those of equal names. Raises
    ConfigError for a missing model, and if nothing can be paired."""
    for evaluation, name in ((first, one), (second, other)):
        if name is not None and name not in evaluation.models:
            raise _no_model(evaluation, name)
    mine = [one] if one is not None else list(first.models)
    theirs = [other] if other is not None else list(second.models)
    if len(mine) == 1 and len(theirs) > 1 and mine[0] in theirs:
        theirs = mine
    if len(theirs) == 1 and len(mine) > 1 and theirs[0] in mine:
        mine = theirs
    if len(mine) == len(theirs) == 1:
        return [(One(first, mine[0]), One(second, theirs[0]))]
    if equal := [name for name in mine if name in theirs]:
        return [(One(first, name), One(second, name)) for name in equal]
    raise ConfigError(
        f"No model of {first.name} ({', '.join(mine)}) is one of {second.name} ({', '.join(theirs)}).",
        f"Name one of each, as {first.name}:{(mine or ['MODEL'])[0]} {second.name}:{(theirs or ['MODEL'])[0]}.",
    )


def _no_model(evaluation: Answered, name: str) -> ConfigError:
    return ConfigError(f"{evaluation.name} has no model {name}.", f"It has {', '.join(evaluation.models) or 'none'}.")


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON, with rounded numbers, and null for unknown ones."""
    return {
        "pairs": [{"a": first.name, "b": second.name} for first, second in comparison.pairs],
        "rows": [_row_as_json(row) for row in comparison.rows],
        "not_compared": [
            {"a": one.first.name, "b": one.second.name, "task": one.task, "why": one.why} for one in comparison.left
        ],
        "interval": LEVEL,
        "level": WRONGLY,
    }


def _row_as_json(row: Row) -> Mapping[str, Any]:
    found = row.found._asdict()
    numbers = {name: found[name] for name in ("difference", "error", "low", "high")}
    return {
        "a": row.first.name,
        "b": row.second.name,
        "task": row.task,
        "metric": row.metric,
        "higher_is_better": row.higher_is_better,
        "value_a": rounded(row.found.first),
        "value_b": rounded(row.found.second),
        **{name: rounded(value) for name, value in numbers.items()},
        "p": float(f"{row.found.p:.6g}"),
        "p_corrected": float(f"{row.p:.6g}"),
        "test": row.found.test,
        "questions": row.found.items,
        "clusters": row.found.clusters,
        "only_a": row.only_first,
        "only_b": row.only_second,
        "detectable": rounded(row.detectable),
        "verdict": row.verdict,
    }


def rounded(value: float | None) -> float | None:
    """A number with six decimals, as JSON has it."""
    return None if value is None else round(value, DIGITS)


def _verdict(found: Paired, p: float, higher_is_better: bool) -> str:
    if p > WRONGLY:
        return EQUAL
    return BETTER[(found.difference > 0) == higher_is_better]


def _differ(first: TaskScore, second: TaskScore) -> str:
    """Why two scores of one name can't be compared. Empty if they can."""
    for what, one, two in (("data", first.data_digest, second.data_digest), ("version", first.version, second.version)):
        if one is not None and two is not None and one != two:
            return f"it is another task by its {what}: {str(one)[:12]} and {str(two)[:12]}"
    if first.asked is None or second.asked is None:
        return ""  # an earlier version of evaluate didn't record it
    here, there = first.asked, second.asked
    differ = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    told = "; ".join(f"{name} {json.dumps(here.get(name))} and {json.dumps(there.get(name))}" for name in differ)
    return f"it was asked in another way: {told}" if differ else ""
