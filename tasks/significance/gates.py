"""Gates: whether an evaluation meets the conditions of a release, and the error that stops one.

The evaluation is published in any case, with `gates.json`, which the release reads before it makes anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, GateError, make_again
from tasks.significance.answered import Answered, MetricScore
from tasks.significance.compare import One, match
from tasks.significance.estimate import LEVEL, estimate, is_binary
from tasks.significance.gate_config import BITS, GateConfig
from tasks.significance.paired import detectable, loses_more_than, paired
from tasks.significance.texts import change, other_text, source_score
from tasks.stage.display.pages import markdown_table
from tasks.stage.named_artifact import named_artifact
from tasks.training.chain import BASE, LINKS

FILE = "gates.json"


class GateResult(BaseModel):
    """One condition of a gate. `score` and `limit` are text, as the table shows them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    model: str
    condition: str
    score: str
    passed: bool
    why: str


_RESULTS = TypeAdapter(list[GateResult])


def gate_references(gates: Sequence[GateConfig]) -> dict[str, Artifact]:
    """The evaluations that gates name, by ref. Needs a session. Raises ConfigError for a ref that moves."""
    refs = sorted({ref for gate in gates if (ref := gate.reference.ref) is not None})
    return {ref: named_artifact("evaluate.gates", ref) for ref in refs}


def gate_digests(gates: Sequence[GateConfig]) -> dict[str, str]:
    """The digests of the evaluations that gates name: part of the stage's key."""
    return {f"gate {ref}": artifact.digest for ref, artifact in gate_references(gates).items()}


def judge_gates(gates: Sequence[GateConfig], run: Answered, referenced: Mapping[str, Answered]) -> list[GateResult]:
    """Whether `run` meets each condition of each gate. `referenced` has the evaluations that gates name, by ref. A gate
    without a model is about the last of the usual chain. A pipeline names the released one.

    A floor or ceiling is compared with the score itself. `no_worse_than` fails only for a loss beyond `by` and beyond
    noise: the lower bound of the one-sided 95 % interval of the paired difference is above `by`. A condition on
    something that wasn't measured fails. Raises DamagedArtifact.
    """
    last = _last(run)
    found = []
    for gate in gates:
        model = gate.model if gate.model is not None else last
        if gate.at_least is not None:
            found.append(_against_limit(gate, run, model, gate.at_least, at_least=True))
        if gate.at_most is not None:
            found.append(_against_limit(gate, run, model, gate.at_most, at_least=False))
        if gate.no_worse_than is not None:
            found.append(_against_other(gate, run, model, referenced))
    return found


def rows(results: Sequence[GateResult]) -> list[dict[str, str]]:
    """The table of results, failures first."""
    return [
        {
            "gate": "passed" if result.passed else "FAILED",
            "task": result.task,
            "model": result.model,
            "condition": result.condition,
            "score": result.score,
            "why": result.why,
        }
        for result in sorted(results, key=lambda result: result.passed)
    ]


def write_results(results: Sequence[GateResult], folder: Path) -> None:
    """Write `gates.json` into the folder of an evaluation."""
    (folder / FILE).write_bytes(_RESULTS.dump_json(list(results), indent=2) + b"\n")


def check_gates(evaluation: Artifact) -> int:
    """Let a release pass if its evaluation met all gates, or has none. Returns their number. Raises GateError,
    DamagedArtifact."""
    path = evaluation.file(FILE)
    if not path.exists():
        return 0
    try:
        results = _RESULTS.validate_json(path.read_bytes())
    except ValidationError as error:
        raise DamagedArtifact(
            f"{FILE} of the evaluation is damaged: {error.errors()[0]['msg']}.", make_again("evaluate")
        ) from error
    failed = sum(not result.passed for result in results)
    if failed:
        where = f" ({evaluation.location})" if evaluation.location else ""
        raise GateError(
            f"{failed} of {len(results)} gates stop the release.\n\n{markdown_table(rows(results))}\n",
            f"The evaluation is kept{where}, with all scores. Train a better model, or change evaluate.gates.",
            gates=rows(results),
        )
    return len(results)


def _last(run: Answered) -> str:
    chain = [name for name in (BASE, *LINKS) if name in run.models]
    return (chain or list(run.models) or [""])[-1]


def _against_limit(gate: GateConfig, run: Answered, model: str, limit: float, *, at_least: bool) -> GateResult:
    condition = f"{_named(gate)} at {'least' if at_least else 'most'} {limit:g}"
    score = _score(run, model, gate)
    if isinstance(score, str):
        return _result(gate, model, condition, "none", False, score)
    gap = score.value - limit if at_least else limit - score.value
    shown = f"{score.value:.4g}" + (f" ± {score.stderr:.2g}" if score.stderr else "")
    why = "" if gap >= 0 else f"{'below' if at_least else 'above'} it by {-gap:.2g}"
    if score.stderr:
        why += f"{', ' if why else ''}{abs(gap) / score.stderr:.1f} standard errors {'to spare' if gap >= 0 else 'off'}"
    return _result(gate, model, condition, shown, gap >= 0, why or "met")


def _against_other(gate: GateConfig, run: Answered, model: str, referenced: Mapping[str, Answered]) -> GateResult:
    ref, name = gate.reference
    other = run if ref is None else referenced[ref]
    before = name if name is not None else _same_model(other, model)
    condition = f"{_named(gate)} no worse than {before if ref is None else f'{ref}:{before}'}"
    condition += f" by more than {gate.by:g}" if gate.by else ""
    score, old = _score(run, model, gate), _score(other, before, gate)
    if isinstance(score, str) or isinstance(old, str):
        return _result(gate, model, condition, "none", False, score if isinstance(score, str) else str(old))
    if gate.task == BITS and not _has_items(run, model):
        return _of_text(gate, (run, model), (other, before), condition, old.value, score.value)
    met = match(One(other, before), One(run, model), gate.task, gate.metric)
    if isinstance(met, str):
        return _result(gate, model, condition, "none", False, met)
    losses = (met.first - met.second) * (1 if met.higher_is_better else -1)
    binary = is_binary(met.first) and is_binary(met.second)
    lost = loses_more_than(gate.by, losses, met.codes, binary=binary)
    found = paired(met.first, met.second, met.codes)
    shown = f"{found.second:.4g} against {found.first:.4g}"
    loss = float(losses.mean())
    told = "alike" if loss == 0 else f"{'worse' if loss > 0 else 'better'} by {abs(loss):.3g}"
    told += f" on {found.items:,} questions" + (f" ± {found.error:.2g}" if found.error else "")
    if lost:
        return _result(gate, model, condition, shown, False, f"{told}: beyond noise")
    seen = detectable(found, 2 * (1 - LEVEL))
    told += "; too few questions to show a loss" if seen is None and loss else ""
    told += f"; a loss of {gate.by + seen:.2g} would be found four times in five" if seen is not None else ""
    return _result(gate, model, condition, shown, True, told)


def _of_text(
    gate: GateConfig, run: tuple[Answered, str], before: tuple[Answered, str], condition: str, old: float, new: float
) -> GateResult:
    """Bits per byte, by the losses of single documents. Evaluations without them have one number each."""
    model, changed = run[1], change(*before, *run, gate.source)
    if changed is None and other_text(*before, *run):
        changed = "they were measured on different texts"
    if isinstance(changed, str):
        return _result(gate, model, condition, "none", False, changed)
    if changed is None:
        told = f"{'worse' if new > old else 'better'} by {abs(new - old):.3g}; one number, whose noise is not known"
        return _result(gate, model, condition, f"{new:.4g} against {old:.4g}", new - old <= gate.by, told)
    found = estimate(changed.parts)
    shown, loss = f"{changed.second:.4g} against {changed.first:.4g}", found.mean
    told = "alike" if loss == 0 else f"{'worse' if loss > 0 else 'better'} by {abs(loss):.3g}"
    told += f" on {found.items:,} documents" + (f" ± {found.error:.2g}" if found.error else "")
    each = np.arange(found.items)
    if found.error is None:  # a single document
        return _result(gate, model, condition, shown, loss <= gate.by, f"{told}, whose noise is not known")
    lost = loses_more_than(gate.by, changed.parts, each, binary=False)
    return _result(gate, model, condition, shown, not lost, told + (": beyond noise" if lost else ""))


def _has_items(run: Answered, model: str) -> bool:
    return BITS in run.models[model].tasks


def _same_model(other: Answered, model: str) -> str:
    """The model of that name, or else the last of the other's chain, as another run may have another chain."""
    return model if model in other.models else _last(other)


def _score(run: Answered, model: str, gate: GateConfig) -> MetricScore | str:
    """The score that a gate is about, or why there is none."""
    if model not in run.models:
        return f"{run.name} has no model {model}, but {', '.join(run.models) or 'none'}"
    scores = run.models[model]
    if gate.task in scores.tasks:
        task = scores.tasks[gate.task]
        score = task.of(gate.metric or task.metric)
        return score or f"{gate.task} has no metric {gate.metric}, but {', '.join(task.metrics) or task.metric}"
    if gate.source is not None:
        return source_score(run, model, gate.source)
    if gate.task == BITS:
        bits = scores.bits_per_byte
        return (
            f"{run.name} has no {BITS} of {model}" if bits is None else MetricScore(value=bits, higher_is_better=False)
        )
    return f"{run.name} did not ask {model} {gate.task}"


def _named(gate: GateConfig) -> str:
    return f"{gate.source} score" if gate.source else gate.metric or "score"


def _result(gate: GateConfig, model: str, condition: str, score: str, passed: bool, why: str) -> GateResult:
    return GateResult(task=gate.task, model=model, condition=condition, score=score, passed=passed, why=why)
