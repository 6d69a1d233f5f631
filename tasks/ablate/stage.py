"""The stage `ablate`: compares the measured runs of a matrix."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.ablate.config import AblateConfig
from tasks.ablate.effects import Effect, Measure, effects, noise_of, winner
from tasks.ablate.held_out import Fair, check_enough, fair_documents
from tasks.ablate.laws.multiplier import Multiplier, multiplier
from tasks.ablate.measures import HELD_OUT, Runs, answer_measures, target_of, text_measures
from tasks.ablate.report import SEEDS, WORTH, plot_effects, rows_of, rows_of_noise, sentence
from tasks.ablate.scaling.saved import read_law
from tasks.significance.compare import DIGITS, rounded
from tasks.stage import stage
from tasks.stage.output import Output

EFFECTS = "effects.json"


def place(arm: int, seed: int) -> str:
    """The name of a run among the stage's inputs, by the numbers of its arm and its seed."""
    return f"{arm}.{seed}"


@stage(version=1)
def ablate(
    config: AblateConfig,
    text: Mapping[str, Artifact],
    answers: Mapping[str, Artifact],
    documents: Mapping[str, Artifact],
    ledgers: Mapping[str, Artifact],
    ladder: Artifact | None,
    out: Output,
) -> None:
    """Compare every arm of a matrix with the first, paired by seed.

    `text` holds a run's losses on held-out documents (`language_modelling`) under `place(arm, seed)`, `answers` its
    answers to a benchmark (`score`) under the same name, a dot and the benchmark. `documents` and `ledgers` hold an
    arm's documents and dedup's ledger of them under its number, where it has any. `ladder` is the reference's of
    `scaling`, by which differences are worth some compute. Writes effects.json, and draws the differences in
    effects.png.

    The first measure is the target, or all held-out text. Its differences are one family of comparisons, those by
    source, of files and of benchmarks are another.
    """
    (first, *others), fair = _of_text(config, text, documents, ledgers)
    arms, seeds = range(len(config.arms)), range(len(config.seeds))
    for label in dict.fromkeys(name.split(".", 2)[2] for name in answers):
        others += answer_measures(label, _runs(answers, arms, seeds, f".{label}"))
    if config.target is not None:
        first, others = target_of(others, config.target), [first, *others]
    given_up = len(config.stopped) + len(config.diverged)
    found = [*effects([first], given_up), *effects(others, given_up)]
    worth = _worth(config, text, found, ladder, out) if ladder else {}
    _write(config, [first, *others], found, worth, out)
    out.table("Effects", rows_of(config, [first, *others], found))
    if worth:
        out.table(WORTH, [{"arm": name, "worth": str(one)} for name, one in worth.items()])
    if noise := _noise(first):
        out.table(SEEDS, rows_of_noise(noise_of(first.values), noise["reference"], len(arms) + given_up))
    if config.diverged:
        out.table("Diverged", [{"arm": name, "how": how} for name, how in config.diverged.items()])
    if config.stopped:
        out.table("Given up early", [{"arm": name, "after steps": steps} for name, steps in config.stopped.items()])
    if fair is not None and fair.left_out:
        out.table("Held-out documents left out", [{"why": why, "documents": n} for why, n in fair.left_out.items()])
    if len(arms) > 1:
        plot_effects(config, first, found, out.path / "effects.png")
    out.count(runs=len(arms) * len(seeds), noise=noise or {}, summary=sentence(config, found, first.name, worth))


def _of_text(
    config: AblateConfig,
    text: Mapping[str, Artifact],
    documents: Mapping[str, Artifact],
    ledgers: Mapping[str, Artifact],
) -> tuple[list[Measure], Fair | None]:
    """The measures of held-out text, and the choice of documents behind them, None without documents."""
    arms, seeds, fair = range(len(config.arms)), range(len(config.seeds)), None
    if documents:
        of_arms, shares = [documents[str(arm)] for arm in arms], [arm.validation_share or 0.0 for arm in config.arms]
        fair = fair_documents(of_arms, shares, [ledgers.get(str(arm)) for arm in arms])
        check_enough(fair)
    return text_measures(_runs(text, arms, seeds), fair), fair


def held_out_loss(
    config: AblateConfig,
    text: Mapping[str, Artifact],
    documents: Mapping[str, Artifact],
    ledgers: Mapping[str, Artifact],
) -> list[float]:
    """The bits per byte of each arm on the held-out text, as the mean over its seeds. Takes what the stage takes."""
    (first, *_), _ = _of_text(config, text, documents, ledgers)
    losses: list[float] = first.values.mean(1).tolist()
    return losses


def _runs(artifacts: Mapping[str, Artifact], arms: Sequence[int], seeds: Sequence[int], after: str = "") -> Runs:
    return [[artifacts[place(arm, seed) + after] for seed in seeds] for arm in arms]


def _worth(
    config: AblateConfig, text: Mapping[str, Artifact], found: Sequence[Effect], ladder: Artifact, out: Output
) -> dict[str, Multiplier]:
    """What each arm is worth in compute, by the reference's law. The law is of all held-out text, so differences are
    added to the reference's losses there."""
    fitted, seeds = read_law(ladder), range(len(config.seeds))
    whole = text_measures([[text[place(0, seed)] for seed in seeds]], None)[0].values[0]
    worth, flops = {}, config.arms[0].flops
    for effect in (one for one in found if one.measure == HELD_OUT):
        arm = config.arms[effect.arm]
        if not flops or not arm.flops:
            continue
        theirs = whole + np.array(effect.by_seed)
        try:
            one = multiplier(fitted, whole, theirs, flops=flops, error=effect.error, freedom=effect.freedom)
        except ConfigError as error:
            out.note(f"{arm.name} is worth no known compute. {error.message}")
            continue
        ratio = flops / arm.flops  # an arm with more compute must be worth more
        worth[arm.name] = one._replace(value=ratio * one.value, low=ratio * one.low, high=ratio * one.high)
    return worth


def _write(
    config: AblateConfig,
    measures: Sequence[Measure],
    found: Sequence[Effect],
    worth: Mapping[str, Multiplier],
    out: Output,
) -> None:
    """Write all numbers."""
    best = winner(found, measures[0].name)
    written = {
        "link": config.link,
        "arms": [{"name": arm.name, "settings": arm.settings} for arm in config.arms],
        "seeds": config.seeds,
        "stopped": config.stopped,
        "diverged": config.diverged,
        "winner": None if best is None else config.arms[best].name,
        "measures": [_measure(measure) for measure in measures],
        "effects": [_effect(config, effect) for effect in found],
        "compute": {
            name: {
                "value": round(one.value, DIGITS),
                "low": round(one.low, DIGITS),
                "high": round(one.high, DIGITS) if math.isfinite(one.high) else None,
                "extrapolated": one.extrapolated,
            }
            for name, one in worth.items()
        },
    }
    (out.path / EFFECTS).write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _measure(measure: Measure) -> dict[str, object]:
    return {
        "name": measure.name,
        "lower_is_better": measure.lower_is_better,
        measure.unit: measure.above.shape[2],
        "values": [[round(value, DIGITS) for value in seeds] for seeds in measure.values.tolist()],
        "noise": _noise(measure),
    }


def _noise(measure: Measure) -> dict[str, float] | None:
    """The noise of seeds beside the reference's mean, or None for one seed."""
    noise, reference = noise_of(measure.values), float(measure.values[0].mean())
    if not noise.freedom:
        return None
    return {"sd": round(noise.sd, DIGITS), "freedom": noise.freedom, "reference": round(reference, DIGITS)}


def _effect(config: AblateConfig, effect: Effect) -> dict[str, object]:
    return {
        "measure": effect.measure,
        "arm": config.arms[effect.arm].name,
        "reference": rounded(effect.reference),
        "value": rounded(effect.value),
        "difference": rounded(effect.difference),
        "low": rounded(effect.low),
        "high": rounded(effect.high),
        "p_corrected": None if effect.p is None else float(f"{effect.p:.6g}"),
        "verdict": effect.verdict,
        "by_seed": [rounded(value) for value in effect.by_seed],
    }
