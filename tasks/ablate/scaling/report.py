"""The results of a ladder for people: tables, a plot, a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tasks.ablate.laws.law import EXPONENTS, FARTHEST, Fitted, Predicted, distinct, interval
from tasks.ablate.laws.optimum import Best, HeldOut, best_size
from tasks.ablate.scaling.config import RungConfig, ScalingConfig, SizeConfig
from tasks.stage.display.figures import BLUE, GREY, ORANGE, new_figure, save_figure

UNIT = "bits per byte"
NOISY = 0.02  # noise of a training, as a share of its loss


class Trained(NamedTuple):
    """A training of the ladder, with its loss."""

    name: str
    rung: RungConfig
    loss: float

    @property
    def flops(self) -> float:
        """Its compute."""
        return 6 * self.rung.of.size * self.rung.tokens


def rows_of_ladder(trained: Sequence[Trained], fitted: Fitted) -> list[dict[str, str]]:
    """A row for each training, by compute and size, with what the law says."""
    rows = []
    for one in sorted(trained, key=lambda one: (one.flops, one.rung.of.size)):
        if one.rung.rate != 1:
            continue
        by_law = float(fitted.law.loss(one.rung.of.size, one.rung.tokens))
        rows.append(
            {
                "size": one.rung.of.name,
                "parameters": f"{one.rung.of.parameters:,}",
                "tokens": f"{one.rung.tokens:,}",
                "FLOPs": f"{one.flops:.3g}",
                UNIT: f"{one.loss:.4f}",
                "by the law": f"{by_law:.4f} ({by_law / one.loss - 1:+.1%})",
            }
        )
    return rows


def rows_of_law(fitted: Fitted) -> list[dict[str, str]]:
    """The parameters of the law, with intervals."""
    law, draws = fitted.law, fitted.draws
    named = {"E, which no compute reaches": (law.E, draws.E)}
    if "size" in fitted.axes:
        named["α, of the size"] = law.alpha, draws.alpha
    if "tokens" in fitted.axes:
        named["β, of the tokens"] = law.beta, draws.beta
    if len(fitted.axes) == 2:
        named["γ, of the compute at the best size"] = law.gamma, draws.gamma
    rows = [{"number": name, "value": in_words(interval(float(one), drawn), 3)} for name, (one, drawn) in named.items()]
    return [*rows, {"number": "noise of a training", "value": f"{fitted.noise:.2%}"}]


def rows_of_held_out(held_out: Sequence[HeldOut]) -> list[dict[str, str]]:
    """The largest trainings beside what the law of the others predicted."""
    return [
        {
            "FLOPs": f"{one.point.flops:.3g}",
            "N": f"{one.point.size:.3g}",
            UNIT: f"{one.point.loss:.4f}",
            "predicted (95 %)": in_words(one.predicted),
            "error": f"{one.error:+.2%}",
        }
        for one in held_out
    ]


def rows_of_best(config: ScalingConfig, fitted: Fitted, best: Sequence[Best]) -> list[dict[str, str]]:
    """The best size by each approach, for the largest compute of the ladder and those that were asked for."""
    rows = []
    for flops in [fitted.largest, *config.computes]:
        if flops > FARTHEST * fitted.largest and not config.beyond:
            continue
        row = {"FLOPs": f"{flops:.3g}", **{f"N by approach {one.approach}": f"{one.size(flops):.3g}" for one in best}}
        if len(fitted.axes) == 2:
            found = best_size(fitted, flops)
            row["N (95 %)"] = f"{found.low:.3g} to {found.high:.3g}"
            row["size"] = nearest(config.sizes, found.value).name
        rows.append(row)
    return rows


def rows_of_predictions(config: ScalingConfig, fitted: Fitted) -> list[dict[str, str]]:
    """The predicted losses of the targets, and of the best size for each compute that was asked for."""
    wanted = [(name, target.of, float(target.tokens)) for name, target in config.targets.items()]
    if len(fitted.axes) == 2:
        for flops in config.computes:
            of = nearest(config.sizes, float(fitted.law.best_size(flops)))
            wanted.append((f"best size for {flops:.3g} FLOPs", of, flops / 6 / of.size))
    rows = []
    for name, of, tokens in wanted:
        flops = 6 * of.size * tokens
        row = {"training": name, "size": of.name, "parameters": f"{of.parameters:,}", "tokens": f"{tokens:,.0f}"}
        if flops > FARTHEST * fitted.largest and not config.beyond:
            said = f"more than {FARTHEST:g} × the largest training: too far"
        elif len(fitted.axes) == 1 and not _is_known(fitted, of, tokens):
            said = "another size or length than the law is of"
        else:
            said = in_words(fitted.predict(of.size, tokens, beyond=True))
        rows.append({**row, f"{UNIT} (95 %)": said})
    return rows


def _is_known(fitted: Fitted, of: SizeConfig, tokens: float) -> bool:
    """Whether a training has the size, or the number of tokens, of all points of a reduced law."""
    axis, value = ("tokens", tokens) if fitted.axes == ("size",) else ("size", of.size)
    return len(distinct([value, getattr(fitted.points[0], axis)])) == 1


def rows_of_rates(trained: Sequence[Trained]) -> list[dict[str, str]]:
    """For each size at which several learning rates were tried: the losses, and the best rate by a parabola over its
    logarithm. muP transfers the rate if it is about the same at all sizes."""
    rows = []
    lengths = {(one.rung.of.width, one.rung.tokens) for one in trained if one.rung.rate != 1}
    for width, tokens in sorted(lengths):
        mine = [one for one in trained if (one.rung.of.width, one.rung.tokens) == (width, tokens)]
        rates = sorted({one.rung.rate for one in mine})
        means = [float(np.mean([one.loss for one in mine if one.rung.rate == rate])) for rate in rates]
        row = {"size": mine[0].rung.of.name, "tokens": f"{tokens:,}"}
        row |= {f"× {rate:g}": f"{mean:.4f}" for rate, mean in zip(rates, means, strict=True)}
        rows.append({**row, "best": _lowest(rates, means)})
    return rows


def _lowest(rates: Sequence[float], losses: Sequence[float]) -> str:
    bend, slope, _ = np.polyfit(np.log(rates), losses, 2)
    best = math.exp(-slope / (2 * bend)) if bend > 0 else math.inf
    if rates[0] <= best <= rates[-1]:
        return f"× {best:.2f}"
    return f"below × {rates[0]:g}" if losses[0] < losses[-1] else f"above × {rates[-1]:g}"


def nearest(sizes: Sequence[SizeConfig], size: float) -> SizeConfig:
    """The possible size that is nearest to N."""
    return min(sizes, key=lambda one: abs(math.log(one.size / size)))


def in_words(number: Predicted, digits: int = 4) -> str:
    """A number with its interval."""
    return f"{number.value:.{digits}f} ({number.low:.{digits}f} to {number.high:.{digits}f})"


def doubts(fitted: Fitted) -> list[str]:
    """Why the law may lead astray, each with a remedy."""
    found = []
    if fitted.noise > NOISY:
        found.append(
            f"trainings lie {fitted.noise:.1%} off the law by chance, and so may predictions: give more seeds "
            "(--seeds 3) or larger budgets"
        )
    for axis, exponent in (("size", fitted.law.alpha), ("tokens", fitted.law.beta)):
        if axis in fitted.axes and not 1.05 * EXPONENTS[0] < float(exponent) < EXPONENTS[1] / 1.05:
            found.append(
                f"the exponent of {axis} ends where the search does, at {float(exponent):.3g}, so how the loss falls "
                f"with {axis} isn't known: give values that are further apart, or more seeds"
            )
    return found


def sentence(fitted: Fitted, held_out: Sequence[HeldOut]) -> str:
    """The law in a sentence."""
    law = fitted.law
    terms = [f"{law.E:.3f}"]
    if "size" in fitted.axes:
        terms.append(f"{law.A:.3g} / N^{law.alpha:.3f}")
    if "tokens" in fitted.axes:
        terms.append(f"{law.B:.3g} / D^{law.beta:.3f}")
    said = f"{UNIT} = {' + '.join(terms)}"
    if held_out:
        said += f", off by at most {max(abs(one.error) for one in held_out):.1%} at the largest compute"
    return said


def plot_ladder(trained: Sequence[Trained], fitted: Fitted, best: Sequence[Best], path: Path) -> None:
    """Draw the loss over the compute, with the law of each size and that of the best size, and the loss over the size
    at each budget, with its parabola's minimum."""
    points = [one for one in trained if one.rung.rate == 1]
    figure = new_figure(3.6)
    left, right = figure.subplots(1, 2)
    computes = np.geomspace(min(one.flops for one in points), FARTHEST * fitted.largest, 60)
    for group in distinct([one.rung.of.size for one in points]):
        size = points[group[0]].rung.of.size
        mine = [points[index] for index in group]
        there = computes[
            (computes >= min(one.flops for one in mine)) & (computes <= 1.2 * max(one.flops for one in mine))
        ]
        left.plot([one.flops for one in mine], [one.loss for one in mine], "o", color=BLUE, markersize=4)
        left.plot(there, fitted.law.loss(size, there / 6 / size), color=GREY, linewidth=0.8)
    if len(fitted.axes) == 2:
        drawn = fitted.draws.best_loss(computes[:, None])
        low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
        left.fill_between(computes, low, high, color=ORANGE, alpha=0.2, linewidth=0)
        left.plot(computes, fitted.law.best_loss(computes), color=ORANGE, linewidth=1.5, label="best size")
        left.legend(frameon=False, fontsize=8)
    left.set(xscale="log", xlabel="FLOPs", ylabel=UNIT, title="compute")
    for group in distinct([one.flops for one in points]):
        mine = sorted((points[index] for index in group), key=lambda one: one.rung.of.size)
        right.plot(
            [one.rung.of.size for one in mine],
            [one.loss for one in mine],
            "o-",
            color=BLUE,
            markersize=4,
            linewidth=0.8,
        )
    for flops, size in next((one.at for one in best if one.approach == 2), []):
        right.axvline(size, color=ORANGE, linewidth=0.8, linestyle="--", label=f"{flops:.1e}")
    right.set(xscale="log", xlabel="N", title="size at each budget")
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
