"""Reports the standings for people: a table of models, a table of pairs, and the judge's position bias."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluate.side_by_side.config import SideBySideConfig
from tasks.evaluate.side_by_side.rates.standings import Pair, PairResult, Standings
from tasks.evaluate.side_by_side.rates.win_rate import Estimate
from tasks.posttrain.reward_model.calibration import wilson

DIGITS = 6
Row = dict[str, Any]


def as_json(found: Standings, bias: Mapping[str, int], left_out: Mapping[Pair, int]) -> dict[str, Any]:
    """The standings for programs. Intervals are at 95 %."""
    pairs = [
        {
            "first": first,
            "second": second,
            "wins": pair.wins,
            "ties": pair.ties,
            "losses": pair.losses,
            "left_out": left_out[first, second],
            "prompts": pair.prompts,
            "win_rate": _numbers(pair.win_rate),
            "length_controlled": _numbers(pair.length_controlled),
            "p": round(pair.p, DIGITS),
            "p_holm": round(pair.p_holm, DIGITS),
            "differs": pair.differs,
        }
        for (first, second), pair in found.pairs.items()
    ]
    models = {
        name: {
            "win_rate": _numbers(model.win_rate),
            "length_controlled": _numbers(model.length_controlled),
            "elo": _numbers(model.elo),
        }
        for name, model in found.models.items()
    }
    return {"models": models, "pairs": pairs, "position_bias": dict(bias)}


def model_rows(
    found: Standings, answered: Mapping[str, Sequence[Row]], names: Sequence[str], baseline: str | None
) -> list[Row]:
    """A row for each model, the strongest first. Lengths are of the answers, in characters."""
    against = "win rate" if baseline is None else f"win rate against {html.escape(baseline, quote=False)}"
    rows = []
    for name in sorted(names, key=lambda name: (-found.models[name].elo.value, name)):
        model, mine = found.models[name], answered[name]
        answers = [row for row in mine if row["fault"] != "refused"]
        row = {
            "model": html.escape(name, quote=False),
            against: percent(model.win_rate),
            "length-controlled": percent(model.length_controlled),
            "Elo": f"{model.elo.value:.0f} ({model.elo.low:.0f} to {model.elo.high:.0f})",
            "mean length": f"{sum(len(row['answer']) for row in answers) / max(1, len(answers)):.0f}",
            "ended": f"{sum(row['ended'] for row in answers) / max(1, len(answers)):.0%}",
        }
        if name == baseline:
            row |= {against: "baseline", "length-controlled": "", "Elo": f"{model.elo.value:.0f}"}
        rows.append(row)
    return rows


def pair_rows(found: Standings, left_out: Mapping[Pair, int]) -> list[Row]:
    """A row for each pair."""
    return [
        {
            "pair": html.escape(f"{first} : {second}", quote=False),
            "won, tied, lost": f"{pair.wins}, {pair.ties}, {pair.losses}",
            "left out": left_out[first, second],
            "win rate": percent(pair.win_rate),
            "length-controlled": percent(pair.length_controlled),
            "p (Holm)": f"{pair.p_holm:.3f}",
            "verdict": html.escape(verdict(first, second, pair), quote=False),
        }
        for (first, second), pair in found.pairs.items()
    ]


def verdict(first: str, second: str, pair: PairResult) -> str:
    """Which model is better beyond chance, if any."""
    if not pair.differs:
        return "no difference beyond chance"
    return f"{first if pair.win_rate.value > 0.5 else second} is better"


def bias_in_words(bias: Mapping[str, int]) -> str:
    """Whether the judge prefers an answer for its place. Empty if it wasn't asked."""
    first, second = bias.get("said_first", 0), bias.get("said_second", 0)
    if not first + second:
        return ""
    low, high = wilson(first, first + second)
    habit = (
        "no preference for a place" if low <= 0.5 <= high else f"it prefers the {'first' if low > 0.5 else 'second'}"
    )
    asked = bias["asked_in_both_orders"]
    return (
        f"Position bias: the judge named the answer in first place in {first / (first + second):.0%} of the cases "
        f"where it named one ({low:.0%} to {high:.0%}: {habit}). In {asked:,} comparisons asked in both orders, it "
        f"named the first both times in {bias['always_first']:,}, and the second both times in "
        f"{bias['always_second']:,}. These count as ties."
    )


def markdown_page(
    config: SideBySideConfig, by_model: Sequence[Row], by_pair: Sequence[Row], bias: Mapping[str, int]
) -> str:
    """The page side_by_side.md."""
    from tasks.stage.display.pages import markdown_table

    judge = "the reward model of the profile"
    if config.judge_endpoint is not None:
        judge = f"the endpoint's model {html.escape(config.judge_endpoint.model, quote=False)}"
    how = f"Judged by {judge}. Ties are half a win, intervals are at 95 % by the bootstrap over prompts. "
    how += "Lengths are in characters. A pair differs if p, corrected for the number of pairs, is below 0.05."
    paragraphs = [
        "# Side by side",
        markdown_table(list(by_model)),
        how,
        markdown_table(list(by_pair)),
        bias_in_words(bias),
    ]
    return "\n\n".join(part for part in paragraphs if part) + "\n"


def percent(rate: Estimate) -> str:
    """A rate with its interval."""
    return f"{rate.value:.1%} ({rate.low:.1%} to {rate.high:.1%})"


def _numbers(estimate: Estimate) -> list[float]:
    return [round(float(value), DIGITS) for value in estimate]
