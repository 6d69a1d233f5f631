"""`gristmill plan` and `gristmill why`: what would run, and for which reason."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.markup import escape

from flows.arithmetic import pretraining_of, training_plan
from flows.commands.scale import scale_as_json, show_scale, sizes_of
from flows.commands.training import show_training
from flows.plan import PlannedStage, plan
from flows.session import session_of
from flows.tables import new_table
from models.presets import derive, explain
from profiles.load import load
from profiles.schema import Profile
from storage.keys import differences
from storage.units import duration, size_of
from tasks.stage.history import nearest
from tasks.training.links import LINKS


def show_plan(
    console: Console,
    name: str,
    overrides: list[str],
    device: str | None = None,
    price: float | None = None,
    utilisation: float | None = None,
    scale: Sequence[str] = (),
    workers: int | None = None,
    json_wanted: bool = False,
) -> None:
    """A table of stages; then, of a profile that pretrains, the model that the size dial gives, and what it takes to
    train it; then what larger corpora would cost. As JSON, the stages and the larger corpora alone."""
    profile = load(name, overrides)
    sizes = sizes_of(scale)
    if json_wanted:
        lines = plan(profile)
        told = scale_as_json(profile, session_of(profile).store, lines, sizes, workers or profile.runtime.data.workers)
        print(json.dumps({"stages": [_as_json(line) for line in lines], "scale": told}, indent=1))
        return
    # First, as it refuses an unknown device
    training = training_plan(profile, device, price, utilisation) if profile.pretrain else None
    lines = plan(profile)
    table = new_table("stage", "", "size", "time", "why", right=["size", "time"])
    hours = training.bill.hours if training else None
    arithmetic = {"pretrain": hours * 3600} if hours is not None else {}
    total = 0.0
    for line in lines:
        guess = "" if line.hit else "~"
        seconds = float(line.manifest.facts.get("seconds", 0)) if line.manifest else arithmetic.get(line.name)
        total += 0 if line.hit or seconds is None else seconds
        table.add_row(
            line.name,
            "[cyan]HIT[/]" if line.hit else "[yellow]MISS[/]",
            guess + size_of(line.manifest.size) if line.manifest else "?",
            "" if line.hit else guess + duration(seconds) if seconds is not None else "?",
            escape(line.why),
        )
    console.print(table)
    console.print(f"\n{_to_make(lines, total, arithmetic)}")
    for line in lines:
        if line.forecast:
            need = f"{size_of(line.forecast.memory)} of memory and {size_of(line.forecast.disk)} of disk"
            console.print(f"{line.name} needs about {need}: {line.forecast.note}.", soft_wrap=True)
    if training:
        show_model(console, profile)
        show_training(console, training)
    show_posttraining(console, profile, training.parameters if training else None)
    if sizes:
        store = session_of(profile).store
        show_scale(console, profile, store, lines, training, sizes, workers or profile.runtime.data.workers)


def _as_json(line: PlannedStage) -> dict[str, object]:
    manifest = line.manifest
    return {
        "stage": line.name,
        "hit": line.hit,
        "why": line.why,
        "bytes": manifest.size if manifest else None,
        "seconds": manifest.facts.get("seconds") if manifest else None,
        "forecast": line.forecast._asdict() if line.forecast else None,
    }


def _to_make(lines: list[PlannedStage], seconds: float, arithmetic: Collection[str]) -> str:
    """How many stages must be made, how long that takes as far as is known, and from where it is known."""
    misses = [line for line in lines if not line.hit]
    if not misses:
        return "Nothing to make."
    earlier = any(line.manifest for line in misses)
    computed = [line.name for line in misses if line.manifest is None and line.name in arithmetic]
    unknown = [line.name for line in misses if line.manifest is None and line.name not in arithmetic]
    by = ["by earlier runs"] * earlier + [f"by the arithmetic below for {', '.join(computed)}"] * bool(computed)
    parts = [f"about {duration(seconds)} {' and '.join(by)}"] * bool(by)
    parts += [f"unknown for {', '.join(unknown)} (never made before)"] * bool(unknown)
    return f"{len(misses)} to make: {', '.join(parts)}."


def show_posttraining(console: Console, profile: Profile, parameters: int | None) -> None:
    """What each process needs to load the model, in the stages after its pretraining."""
    links = [name for name in LINKS if getattr(profile, name) is not None]
    if not links:
        return
    ranks = profile.runtime.training.processes
    size = "4 bytes a parameter" if parameters is None else size_of(4 * parameters)
    hosted = "" if parameters is None or ranks == 1 else f", {size_of(ranks * 4 * parameters)} on a host"
    console.print(
        f"{', '.join(links)}: each process loads the whole model in float32 before it is divided, {size}{hosted}; what "
        "their training needs beside it is not in these tables.",
        soft_wrap=True,
    )


def show_model(console: Console, profile: Profile) -> None:
    """What the size dial derives, and from which rule."""
    shape = derive(pretraining_of(profile).model, profile.tokenizer.vocab_size)
    table = new_table("", "value", "rule", right=["value"], title="The model")
    for what, value, rule in explain(shape):
        number = isinstance(value, int) and not isinstance(value, bool)
        table.add_row(what, f"{value:,}" if number else str(value), rule)
    console.print()
    console.print(table)


def show_why(console: Console, stage: str, name: str, overrides: list[str]) -> None:
    """The fields that differ from the nearest earlier artifact, one a line."""
    profile = load(name, overrides)
    line = plan(profile, session_of(profile, stage))[-1]
    if line.hit:
        assert line.manifest is not None
        how = escape(line.manifest.adopted) or "made"
        console.print(f"{stage}: HIT, {stage}/{line.manifest.key[:12]} {how} {line.manifest.created}.")
    else:
        console.print(f"{stage}: MISS, {escape(line.why)}")
    if line.payload is None:
        return
    key = line.payload.key() if line.hit else ""
    found = nearest(session_of(profile).store, line.payload, but=key)
    if found is None:
        return
    if line.hit:
        console.print("Had it not been there, these fields would have been why:")
    table = new_table("field", f"{found.key[:12]} ({found.created})", "now")
    for path, old, new in differences(found.payload.model_dump(), line.payload.model_dump()):
        table.add_row(f"{stage}.{path.removeprefix('config.')}", escape(str(old)), escape(str(new)))
    console.print(table)
