"""The stage `scaling`: fits a law to the trainings of a ladder, predicts by it, and says how far off it is."""

from __future__ import annotations

from collections.abc import Mapping

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.ablate.laws.law import Point, fit
from tasks.ablate.laws.optimum import HeldOut, best_sizes, held_out_errors
from tasks.ablate.measures import text_measures
from tasks.ablate.scaling.config import ScalingConfig
from tasks.ablate.scaling.report import (
    Trained,
    doubts,
    plot_ladder,
    rows_of_best,
    rows_of_held_out,
    rows_of_ladder,
    rows_of_law,
    rows_of_predictions,
    rows_of_rates,
    sentence,
)
from tasks.ablate.scaling.saved import LAW, write_law
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1)
def scaling(config: ScalingConfig, text: Mapping[str, Artifact], out: Output) -> None:
    """Fit the law of a ladder. `text` holds each rung's losses on held-out documents (`language_modelling`), under the
    rung's name.

    The loss is bits per byte of the held-out text, the same for all. Writes law.json, with which `read_law` predicts,
    and draws ladder.png. The law is also fitted without the trainings of the largest compute, to say how far off it is
    there. Raises ConfigError for a ladder that tells no law.
    """
    names = list(config.rungs)
    first, *_ = text_measures([[text[name]] for name in names], None)
    losses = dict(zip(names, first.values[:, 0].tolist(), strict=True))
    trained = [Trained(name, rung, losses[name]) for name, rung in config.rungs.items()]
    points = [Point(one.rung.of.size, one.rung.tokens, one.loss) for one in trained if one.rung.rate == 1]
    fitted = fit(points)
    best, held_out = best_sizes(fitted), _held_out(points, out)
    predictions = rows_of_predictions(config, fitted)
    write_law(
        fitted,
        out.path / LAW,
        losses=losses,
        best=[one._asdict() for one in best],
        held_out=[{"point": one.point._asdict(), "predicted": one.predicted._asdict()} for one in held_out],
    )
    if config.diverged:
        out.table("Diverged", [{"training": name, "how": how} for name, how in config.diverged.items()])
    for problem in [*([fitted.reduced] if fitted.reduced else []), *doubts(fitted)]:
        out.warn(problem)
    out.table("Ladder", rows_of_ladder(trained, fitted))
    out.table("Law", rows_of_law(fitted))
    if held_out:
        out.table("Largest trainings, predicted from the others", rows_of_held_out(held_out))
    if best:
        out.table("Best size", rows_of_best(config, fitted, best))
    if predictions:
        out.table("Predictions", predictions)
    if rates := rows_of_rates(trained):
        out.table("Learning rate", rates)
    plot_ladder(trained, fitted, best, out.path / "ladder.png")
    out.count(
        trainings=len(trained),
        largest_flops=fitted.largest,
        held_out_error=max((abs(one.error) for one in held_out), default=None),
        summary=sentence(fitted, held_out),
    )


def _held_out(points: list[Point], out: Output) -> list[HeldOut]:
    try:
        return held_out_errors(points)
    except ConfigError as error:
        out.warn(f"the error on the largest trainings isn't known: {error.message}")
        return []
