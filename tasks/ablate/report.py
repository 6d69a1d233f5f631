"""The results of an ablation for people: tables, a plot, a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.ablate.config import AblateConfig
from tasks.ablate.effects import BETTER, UNTESTED, WORSE, Effect, Measure, Noise, seeds_for, winner
from tasks.ablate.laws.multiplier import Multiplier
from tasks.stage.display.figures import BLUE, GREY, ORANGE, new_figure, save_figure

WORTH = "Worth in compute"
SEEDS = "Seeds that a difference needs"
DIFFERENCES = (0.002, 0.005, 0.01, 0.02, 0.05)  # as shares of the reference
LONGEST = 44  # characters of an arm's name in a plot


def rows_of(config: AblateConfig, measures: Sequence[Measure], found: Sequence[Effect]) -> list[dict[str, str]]:
    """A row for each measure and arm, the reference's first."""
    rows = []
    for measure in measures:
        reference = float(measure.values[0].mean())
        how = f"{measure.name} ({'less' if measure.lower_is_better else 'more'} is better)"
        rows.append(_row(how, config.arms[0].name, f"{reference:.4f}", "", "", ""))
        for effect in (effect for effect in found if effect.measure == measure.name):
            change = signed(effect.difference)
            if effect.low is not None and effect.high is not None:
                change += f" ({signed(effect.low)} to {signed(effect.high)})"
            p = "" if effect.p is None else f"{effect.p:.2g}"
            rows.append(_row(how, config.arms[effect.arm].name, f"{effect.value:.4f}", change, p, effect.verdict))
    return rows


def signed(value: float) -> str:
    """A difference with four decimals. Nothing is +0.0000, on whichever side of it."""
    return f"{round(value, 4) + 0.0:+.4f}"


def _row(measure: str, arm: str, value: str, change: str, p: str, verdict: str) -> dict[str, str]:
    return {
        "measure": measure,
        "arm": arm,
        "value": value,
        "difference (95 %)": change,
        "p, corrected": p,
        "verdict": verdict,
    }


def rows_of_noise(noise: Noise, reference: float, arms: int) -> list[dict[str, str]]:
    """How many seeds find a difference of a share of the `reference`, in a matrix of as many arms, or of two."""
    rows = []
    for share in DIFFERENCES:
        seeds = seeds_for(share * reference, noise, max(2, arms))
        needed = "more than 1,000" if seeds is None else f"{seeds:,}"
        rows.append({"difference": f"{share * reference:.4f} ({share:.1%})", "seeds of each arm": needed})
    return rows


def sentence(
    config: AblateConfig, found: Sequence[Effect], measure: str, worth: Mapping[str, Multiplier] | None = None
) -> str:
    """Which arm is best, if that could be told, and what it is worth in compute, if that is known."""
    mine = [effect for effect in found if effect.measure == measure]
    if not mine:
        seeds = len(config.seeds)
        alone = f"no arm is left beside {config.arms[0].name}"
        return alone if config.diverged else f"the noise of {seeds} seed{'s' if seeds > 1 else ''}"
    best = winner(mine, measure)
    if best is not None:
        effect = next(effect for effect in mine if effect.arm == best)
        name = config.arms[best].name
        compute = f", worth {worth[name]}" if worth and name in worth else ""
        return f"{name} is better by {abs(effect.difference):.4f}{compute}"
    if any(effect.verdict == UNTESTED for effect in mine):
        return "not tested: one seed can't tell a difference from noise"
    worse = [config.arms[effect.arm].name for effect in mine if effect.verdict == WORSE]
    if len(worse) == len(mine):
        return f"{config.arms[0].name} is better than {'all others' if len(worse) > 1 else worse[0]}"
    told = f"; {', '.join(worse)} {'are' if len(worse) > 1 else 'is'} worse" if worse else ""
    return f"no arm is better than {config.arms[0].name} beyond noise{told}"


def plot_effects(config: AblateConfig, measure: Measure, found: Sequence[Effect], path: Path) -> None:
    """Draw each arm's difference with its interval, and that of each seed."""
    mine = [effect for effect in found if effect.measure == measure.name]
    figure = new_figure(1.4 + 0.42 * len(mine))
    axes = figure.subplots()
    axes.axvline(0, color=GREY, linewidth=1, linestyle="--")
    for row, effect in enumerate(mine):
        colour = {BETTER: BLUE, WORSE: ORANGE}.get(effect.verdict, GREY)
        axes.plot(effect.by_seed, [row] * len(effect.by_seed), "|", color=colour, markersize=9)
        if effect.low is not None and effect.high is not None:
            axes.plot([effect.low, effect.high], [row, row], color=colour, linewidth=2)
        axes.plot([effect.difference], [row], "o", color=colour, markersize=6)
    names = [config.arms[effect.arm].name for effect in mine]
    axes.set_yticks(range(len(mine)), [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names])
    axes.invert_yaxis()
    axes.margins(y=0.25)
    unit = "bits per byte"
    axes.set(xlabel=f"difference to {config.arms[0].name} in {unit}: left is better", title=f"{measure.name}, 95 %")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
