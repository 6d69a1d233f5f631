"""The stage `mix`: fits laws to a swarm of measured mixtures, and proposes one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from storage.artifact import Artifact
from tasks.ablate.config import Target
from tasks.ablate.effects import Measure
from tasks.ablate.held_out import Fair, check_enough, fair_documents
from tasks.ablate.measures import answer_measures, components, text_measures
from tasks.ablate.mix.config import MixConfig
from tasks.ablate.mix.laws import LAWS, Swarm, Tried, Values, fit_trees, tried
from tasks.ablate.mix.proposal import Proposal, proposed, resampled, space_of
from tasks.ablate.mix.report import plot_shares, rows_of_laws, rows_of_losses, rows_of_shares, sentence, yaml_of
from tasks.ablate.mix.swarm import rounded
from tasks.ablate.stage import place
from tasks.stage import stage
from tasks.stage.output import Output

MIX, MIXTURE = "mix.json", "mixture.yaml"
RESAMPLED = 200
LAW_OF_STEPS = 40  # bootstraps of boosted trees, which take longer


@stage(version=2)
def mix(
    config: MixConfig,
    text: Mapping[str, Artifact],
    answers: Mapping[str, Artifact],
    documents: Mapping[str, Artifact],
    ledgers: Mapping[str, Artifact],
    out: Output,
) -> None:
    """Propose the shares of the sources that train the best model, by a law fitted to a swarm of runs.

    `text` holds a run's losses on held-out documents under `place(number, 0)`, `answers` its answers to a benchmark
    under the same name, a dot and the benchmark. For models of an earlier swarm, `documents` and `ledgers` hold the
    documents of these token shards ("0") and of the earlier ones ("1"), and dedup's ledgers of them. Writes
    mixture.yaml, a part of a profile, and mix.json, and draws the shares in shares.png.

    Raises ConfigError for a target that wasn't measured, EmptyOutput if too few held-out documents can be compared.
    """
    fair = None
    if documents:
        both = ("0", "1")
        fair = fair_documents([documents[one] for one in both], config.held_out, [ledgers.get(one) for one in both])
        check_enough(fair)
        fair = fair._replace(kept_by_all=np.ones_like(fair.kept_by_all))  # the earlier ones lack the added source
    measures = _measures(len(config.swarm), text, answers, fair)
    parts = components(measures, config.target)
    weights = weights_of(parts, config.target)
    names = list(config.natural)
    shares = np.array([[one.get(name, 0.0) for name in names] for one in config.swarm])
    apart = np.arange(len(shares)) >= len(shares) - config.earlier
    natural, most = (np.array([values[name] for name in names]) for values in (config.natural, config.most))
    losses = np.array([part.values[:, 0] for part in parts]).T
    swarm = Swarm(shares, losses, apart)
    laws = tried(swarm, weights, config.seed)
    fit, error = LAWS[laws[0].law], laws[0].error
    space, law = space_of(shares, natural, most), fit(swarm)
    best = rounded(proposed(law, weights, space, error, config.seed))
    times = LAW_OF_STEPS if fit is fit_trees else RESAMPLED
    others = resampled(fit, swarm, weights, space, error, times=times, seed=config.seed)
    low, high = np.quantile(others, [0.025, 0.975], axis=0)
    found = Proposal(names, natural, best, np.minimum(low, best), np.maximum(high, best))
    predicted = law(np.array([natural, best]))
    out.table("Laws", rows_of_laws(laws, float(np.std(losses @ weights))))
    out.table("Proposed shares", rows_of_shares(found))
    out.table("Predicted bits per byte", rows_of_losses([part.name for part in parts], predicted, weights))
    _write(config, found, dict(zip([part.name for part in parts], weights.tolist(), strict=True)), losses, laws, out)
    (out.path / MIXTURE).write_text(yaml_of(found), encoding="utf-8")
    plot_shares(found, shares, losses @ weights, out.path / "shares.png")
    out.count(
        runs=len(shares),
        proposed=found.shares,
        law=laws[0].law,
        summary=sentence(found, float((predicted[1] - predicted[0]) @ weights)),
    )


def weights_of(parts: Sequence[Measure], target: Target) -> Values:
    """The weight of each part of a target, with the sum 1: of text that counts as it is, its share of the bytes."""
    if isinstance(target, list):
        sizes = np.array([float(np.broadcast_to(part.below, part.above.shape)[0, 0].sum()) for part in parts])
    else:
        sizes = np.array(list(target.values()))
    weights: Values = sizes / sizes.sum()
    return weights


def _measures(
    runs: int, text: Mapping[str, Artifact], answers: Mapping[str, Artifact], fair: Fair | None
) -> list[Measure]:
    found = text_measures([[text[place(run, 0)]] for run in range(runs)], fair)
    for label in dict.fromkeys(name.split(".", 2)[2] for name in answers):
        found += answer_measures(label, [[answers[f"{place(run, 0)}.{label}"]] for run in range(runs)])
    return found


def _write(
    config: MixConfig, found: Proposal, weights: dict[str, float], losses: Values, laws: Sequence[Tried], out: Output
) -> None:
    """Write all numbers. `weights` are those of the target's parts."""
    targets = losses @ np.array([*weights.values()])
    written = {
        "natural": config.natural,
        "proposed": found.shares,
        "interval": {
            name: [round(low, 4), round(high, 4)]
            for name, low, high in zip(found.names, found.low.tolist(), found.high.tolist(), strict=True)
        },
        "target": config.target,
        "weights": weights,
        "laws": [one._asdict() for one in laws],
        "swarm": [
            {"mixture": mixture, "target": target, "losses": dict(zip(weights, row, strict=True))}
            for mixture, target, row in zip(
                config.swarm, targets.round(6).tolist(), losses.round(6).tolist(), strict=True
            )
        ],
    }
    (out.path / MIX).write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
