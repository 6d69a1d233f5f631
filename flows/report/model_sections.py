"""The sections on models: each training, the scores, and the formats of a release."""

from __future__ import annotations

from collections.abc import Iterator

from flows.report.drawing import charts
from flows.report.drawing.page import Bar, Block, Cell, Figure, Figures, Fold, Heading, Passage, Table, Text
from flows.report.reading import whole
from flows.report.results import Results, Score
from flows.report.training import Training
from storage.units import size_of
from tasks.significance.scores import SAME

TITLES = {"pretrain": "Pretraining", "sft": "SFT", "dpo": "DPO"}


def training(one: Training) -> Iterator[Block]:
    """A training: its figures, curves, events and samples."""
    title = TITLES.get(one.stage, one.stage.upper() if len(one.stage) < 5 else one.stage.capitalize())
    yield Heading(title)
    yield Figures(list(_figures(one)))
    if one.change is not None:
        change, low, high = one.change
        better = high < 0
        verdict = "so the training helped" if better else "so it did harm" if low > 0 else "which may be chance"
        yield Text(
            f"{title} changed the loss on held-out pairs by {signed(change)} (95 % interval {signed(low)} to "
            f"{signed(high)}), {verdict}."
        )
    if one.curve:
        rows: list[dict[str, Cell]] = [
            {
                "step": point.step,
                "loss": point.loss,
                "low": point.low,
                "high": point.high,
                "validation": point.validation,
                "learning rate": point.learning_rate,
            }
            for point in one.curve
        ]
        spans = one.steps_in_a_point
        said = f"The line is the mean of {spans} steps, the band their range." if spans > 1 else ""
        steps = [step for event in one.events if (step := whole(event.get("step"))) is not None]
        height = 300 if one.stage == "pretrain" else 200
        yield charts.curve(f"Loss of {title}", rows, said=said, events=steps, height=height)
        rates: list[dict[str, Cell]] = [
            {"step": row["step"], "learning rate": row["learning rate"]}
            for row in rows
            if row["learning rate"] is not None
        ]
        if one.stage == "pretrain" and len(rates) > 1:
            yield charts.line("Learning rate", rates, "step", "learning rate")
    for name, values in one.measures.items():
        words = name.replace("validation", "held-out").replace("_", " ")
        points: list[dict[str, Cell]] = [{"step": step, words: value} for step, value in values]
        if len(points) > 1:
            yield charts.line(f"{words.capitalize()} of {title}", points, "step", words)
    if one.events:
        yield Table([{k: _plain(v) for k, v in event.items()} for event in one.events], "Faults, and what was done")
    dropped: list[dict[str, Cell]] = [{"reason": name, "pairs": count} for name, count in one.dropped.items() if count]
    if dropped:
        yield Table(dropped, f"Pairs that {title} dropped")
    if one.samples:
        yield Fold(f"Samples of {title}", [Passage(f"{each.prompt} · {each.how}", each.text) for each in one.samples])


def signed(value: float, digits: str = ".3f") -> str:
    """A difference with its sign, by a real minus."""
    return f"{value:+{digits}}".replace("-", "−")


def _figures(one: Training) -> Iterator[Figure]:
    steps = one.figures.get("steps")
    if steps:
        yield Figure("Steps", f"{steps:,.0f}", _pairs(one))
    if one.after is not None:
        before = f"from {one.before:.3f}" if one.before is not None else ""
        yield Figure("Validation loss", f"{one.after:.3f}", before)
    elif "train_loss" in one.figures:
        yield Figure("Training loss", f"{one.figures['train_loss']:.3f}")
    if "validation_reward" in one.figures:
        first = one.figures.get("initial_validation_reward")
        was = "" if first is None else f"from {first:.3f}"
        yield Figure("Held-out reward", f"{one.figures['validation_reward']:.3f}", was)
    if "validation_preference_accuracy" in one.figures:
        yield Figure("Preferences right", f"{one.figures['validation_preference_accuracy']:.0%}", "of held-out pairs")
    if one.tokens_per_second:
        share = f"{one.utilisation:.0%} of the peak" if one.utilisation else ""
        number = f"{one.processes} × " if one.processes and one.processes > 1 else ""
        yield Figure(
            "Tokens a second",
            f"{one.tokens_per_second:,.0f}",
            ", ".join(filter(None, [f"{number}{one.device}", share])),
        )
    if one.figures.get("rollbacks") or one.figures.get("skipped_batches"):
        yield Figure("Healed", f"{one.figures.get('rollbacks', 0):.0f} times")


def _pairs(one: Training) -> str:
    if one.pairs:
        return f"{one.pairs.get('trained on', 0):,} of {one.pairs.get('pairs', 0):,} pairs"
    epochs = one.figures.get("epochs")
    return f"{epochs:.2f} epochs" if epochs is not None else ""


def _plain(value: object) -> Cell:
    return value if value is None or isinstance(value, str | int | float) else str(value)


def evaluation(results: Results) -> Iterator[Block]:
    """Bits per byte and scores with their intervals, gates, and answers side by side."""
    bits: list[dict[str, Cell]] = [
        {
            "text": "all held-out text" if one.source == "all" else one.source,
            "bits per byte": one.value,
            "low": one.low,
            "high": one.high,
            "model": one.model,
        }
        for one in results.bits
    ]
    if bits:
        order = list(dict.fromkeys(row["text"] for row in bits))
        bits.sort(key=lambda row: order.index(row["text"]))
        yield charts.intervals(
            "Bits per byte of held-out text",
            bits,
            "text",
            "bits per byte",
            "model",
            said="Less is better. Lines are 95 % intervals.",
        )
    for title, chosen in (
        ("Scores", [one for one in results.scores if not one.safety]),
        ("Safety", [one for one in results.scores if one.safety]),
    ):
        if chosen:
            yield from _scores(title, chosen)
    if results.gates:
        yield Table([dict(row) for row in results.gates], "Gates")
    if results.answers:
        blocks: list[Block] = []
        for one in results.answers:
            blocks += [Text(one.prompt), *(Passage(model, text) for model, text in one.answers.items())]
        yield Fold("Answers side by side", blocks)


def _scores(title: str, scores: list[Score]) -> Iterator[Block]:
    rows: list[dict[str, Cell]] = [
        {
            "task": one.task,
            "score": one.value,
            "low": one.low,
            "high": one.high,
            "chance": one.chance,
            "model": one.model,
            "noise": one.verdict == SAME,
            "verdict": one.verdict,
            "questions": one.items,
        }
        for one in sorted(scores, key=lambda one: one.task)
    ]
    noise = sum(bool(row["noise"]) for row in rows)
    told = f" {noise} of {len(rows)} are within noise of it: their dots are hollow." if noise else ""
    yield charts.intervals(
        title,
        rows,
        "task",
        "score",
        "model",
        said=f"Lines are 95 % intervals, ticks the score of guessing.{told}",
        reference="chance",
        hollow="noise",
    )


def formats(results: Results) -> Iterator[Block]:
    """The formats of a release, with their sizes and their differences to the checkpoint."""
    if not results.formats:
        return
    largest = max(one.bytes for one in results.formats)
    yield Table(
        [
            {
                "format": one.name,
                "size": Bar(size_of(one.bytes), one.bytes / max(1, largest)),
                "divergence (nats)": _or_empty(one.divergence, ".1e"),
                "perplexity": _or_empty(one.perplexity, ".2f"),
                "change": "" if one.increase is None else signed(one.increase, ".2%"),
                "same likeliest token": _or_empty(one.same_top, ".1%"),
                "same greedy text": "" if one.prompts is None else f"{one.same_greedy} of {one.prompts}",
                "proof": one.verdict,
                "tokens/s": _or_empty(one.generation_speed, ",.0f"),
                "memory": "" if one.memory is None else size_of(one.memory),
            }
            for one in results.formats
        ],
        "Formats, each loaded in its runtime and compared with the checkpoint",
    )
    rows: list[dict[str, Cell]] = [
        {
            "format": one.name,
            "change of perplexity": one.increase,
            "low": one.increase_low,
            "high": one.increase_high,
            "model": "format",
        }
        for one in results.formats
        if one.increase is not None
    ]
    if not rows:
        return
    yield charts.intervals(
        "Change of perplexity by format",
        rows,
        "format",
        "change of perplexity",
        "model",
        said="Relative to the checkpoint, with 95 % intervals.",
        shown="+.2%",
    )


def _or_empty(value: float | None, digits: str) -> str:
    return "" if value is None else f"{value:{digits}}"
