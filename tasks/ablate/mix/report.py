"""A proposed mixture for people: tables, a plot, a sentence, and a part of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from tasks.ablate.mix.laws import Tried, Values
from tasks.ablate.mix.proposal import Proposal
from tasks.stage.display.figures import BLUE, GREY, ORANGE, new_figure, save_figure


def rows_of_laws(laws: Sequence[Tried], spread: float) -> list[dict[str, str]]:
    """A row for each law, the chosen one first. `spread` is the standard deviation of the target over the swarm, which
    is the error of no law at all."""
    rows = [(one.law, one.spearman, one.rmse, _error(one.error)) for one in laws]
    return [
        {"law": law, "Spearman": f"{rank:.3f}", "RMSE": _error(rmse), "near the best": error}
        for law, rank, rmse, error in [*rows, ("the mean of all runs", 0.0, spread, "")]
    ]


def _error(value: float) -> str:
    return f"{value:.4f}" if value < 1000 else f"{value:.1e}"  # a law may explode where it has no data


def rows_of_shares(found: Proposal) -> list[dict[str, str]]:
    """A row for each source."""
    unclear = found.unclear
    return [
        {
            "source": name,
            "natural": f"{natural:.3f}",
            "proposed (95 %)": f"{best:.3f} ({low:.3f} to {high:.3f})",
            "against natural": "not told apart" if name in unclear else "more" if best > natural else "less",
        }
        for name, natural, best, low, high in zip(
            found.names, found.natural, found.best, found.low, found.high, strict=True
        )
    ]


def rows_of_losses(names: Sequence[str], predicted: Values, weights: Values) -> list[dict[str, str]]:
    """The predicted losses of natural proportions and of the proposal, shape (2, parts), by part and together."""
    natural, best = predicted
    rows = [("target", float(natural @ weights), float(best @ weights), 1.0)]
    if len(names) > 1:
        rows += list(zip(names, natural.tolist(), best.tolist(), weights.tolist(), strict=True))
    return [
        {
            "of": name,
            "weight": f"{weight:.3f}",
            "natural": f"{before:.4f}",
            "proposed": f"{after:.4f}",
            "difference": f"{after - before:+.4f}",
        }
        for name, before, after, weight in rows
    ]


def sentence(found: Proposal, gain: float) -> str:
    """What is proposed, and what the law expects of it."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in found.shares.items())
    if len(found.unclear) == len(found.names):
        return f"natural proportions can't be told from the best mixture ({shares})"
    return f"{shares}: {gain:+.4f} bits per byte of the target are predicted, against natural proportions"


def yaml_of(found: Proposal) -> str:
    """The part of a profile that sets the mixture."""
    return yaml.safe_dump({"pretrain": {"mixture": found.shares}}, sort_keys=False, allow_unicode=True)


def plot_shares(found: Proposal, shares: Values, target: Values, path: Path) -> None:
    """Draw the swarm's target over the share of each source, with the natural share and the proposed one."""
    columns = min(3, len(found.names))
    rows = -(-len(found.names) // columns)
    figure = new_figure(0.6 + 2.1 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for number, axes in enumerate(grid.flat):
        if number >= len(found.names):
            axes.set_axis_off()
            continue
        axes.plot(shares[:, number], target, "o", color=GREY, markersize=3)
        axes.axvline(found.natural[number], color=GREY, linewidth=1, linestyle="--")
        axes.axvspan(found.low[number], found.high[number], color=BLUE, alpha=0.2, linewidth=0)
        axes.axvline(found.best[number], color=ORANGE, linewidth=2)
        axes.set(xlabel=found.names[number], xlim=(-0.02, float(max(1e-3, np.max(shares[:, number]))) * 1.05))
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set(ylabel="target, bits per byte")
    figure.suptitle("Shares: proposed (line), its 95 % interval (band), natural (dashes)", color=GREY, fontsize=10)
    save_figure(figure, path)
