"""`gristmill plan` and `gristmill why`: what would run, and why."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from flows.commands.scale import scale_as_json, show_scale, sizes_of
from flows.commands.training import show_training
from flows.early import NO_NEWS, told_of_unread
from flows.estimates.arithmetic import TrainingPlan, gpu_of, shape_to_train, training_plan, training_work
from flows.estimates.expected import sizes
from flows.estimates.parts import seconds_of
from flows.estimates.plan_notes import (
    accuracy_notes,
    compile_notes,
    disk_notes,
    filter_notes,
    repeat_notes,
    resume_notes,
    reuse_notes,
    room_of,
    run_notes,
    source_notes,
)
from flows.estimates.planned_stage import PlannedStage
from flows.estimates.posttraining import Need, divided, needs
from flows.estimates.stages import estimates, resumes_at
from flows.estimates.synthesis import synthesis_notes
from flows.matrix.predicted import ladder_notes
from flows.plan import plan
from flows.records.recorder import Asked
from flows.session import session_of, whole_of
from flows.tables import new_table
from models.devices import Device
from models.presets import Shape, UntracedError, explain
from profiles.load import load
from profiles.schema import Profile
from storage.keys import differences
from storage.runs.record import Estimate
from storage.store import Store
from storage.units import duration, size_of
from tasks.base.source import parameters_of_base
from tasks.checks.extras import told_of_extras
from tasks.stage import machine
from tasks.stage.history import nearest
from tasks.stage.runtime import Runtime
from tasks.training.chain import LINKS

UNKNOWN = "the amount of work is unknown"


def show_plan(
    console: Console,
    asked: Asked,
    device: str | None = None,
    price: float | None = None,
    utilisation: float | None = None,
    scale: Sequence[str] = (),
    workers: int | None = None,
    json_wanted: bool = False,
) -> None:
    """Print a table of stages. For a run that pretrains, also the model that the size dial gives and its training. Then
    the cost of larger corpora. JSON has only the stages, the disk and the larger corpora."""
    profile = load(asked.profile, asked.overrides)
    session = session_of(profile, asked.to, asked.refresh)
    corpora = sizes_of(scale)
    reached = profile.names_to(asked.to)
    # First, to refuse an unknown device before any work
    shape, untraced = shape_to_train(profile), ""
    try:
        training = (
            training_plan(profile, device, price, utilisation, shape) if "pretrain" in reached and shape else None
        )
    except UntracedError as error:
        training, untraced = None, f"No estimate of pretrain's memory: {error}."
    gpu = training.device if training and training.device.name != "cpu" else gpu_of(profile.runtime, device)
    lines, store = plan(profile, session), session.store
    planned = [line.name for line in lines]
    if training and "pretrain" not in planned:  # dedup found no new documents
        training = None
    work = training_work(profile, cuda=gpu is not None, shape=shape)
    expected = estimates(profile, store, lines, work, gpu, elsewhere=device is not None)
    bytes_of = sizes(profile, lines, work)
    if training and gpu is None and (took := _training_seconds(lines, expected)):
        training = training.with_time(took)
    if json_wanted:
        larger = scale_as_json(profile, store, lines, corpora, workers or profile.runtime.data.workers)
        stages = [_as_json(store, profile, line, expected.get(line.name), bytes_of.get(line.name)) for line in lines]
        room = room_of(store, lines, bytes_of, training)._asdict()
        print(json.dumps({"stages": stages, "scale": larger, "disk": room}, indent=1))
        return
    pools = {line.name: profile.pool_of(whole_of(line.name)) or "" for line in lines if not line.hit}
    pooled = {name for name, pool in pools.items() if pool}
    where = ["pool"] if any(pools.values()) else []
    table = new_table("stage", "", *where, "size", "time", "by", "why", right=["size", "time"])
    for line in lines:
        pool = [pools.get(line.name, "")] if where else []
        table.add_row(*_cells(line, expected.get(line.name), bytes_of.get(line.name), pool))
    console.print(table)
    console.print(f"\n{_to_make(lines, expected)}", soft_wrap=True)
    if reached and reached[-1] not in planned:
        console.print(NO_NEWS, soft_wrap=True)
    notes = [*source_notes(profile), *filter_notes(profile), *told_of_unread(profile, reached)]
    made_here = [line.name for line in lines if not line.hit and line.name not in pooled]
    notes += map(escape, told_of_extras(made_here))
    notes += map(escape, synthesis_notes(profile, store, lines))
    notes += [*reuse_notes(store, lines), *compile_notes(lines), *run_notes(store, lines)]
    notes += repeat_notes(profile, lines, training)
    notes += map(escape, ladder_notes(profile, store, lines, training))
    notes += [*resume_notes(store, lines, training.steps if training else None), *accuracy_notes(store, profile.name)]
    notes += [escape(untraced)] if untraced else []
    for text in [*notes, *disk_notes(store, lines, bytes_of, training)]:
        console.print(text, soft_wrap=True, highlight=False)
    for line in lines:
        if line.forecast:
            need = f"{size_of(line.forecast.memory)} of memory and {size_of(line.forecast.disk)} of disk"
            console.print(f"{line.name} needs about {need}: {line.forecast.note}.", soft_wrap=True)
    if training:
        show_model(console, training.shape)
        show_training(console, training)
    to_make = [line.name for line in lines if not line.hit]
    show_posttraining(console, profile, to_make, shape, _parameters(profile, training), gpu)
    if corpora:
        show_scale(console, profile, store, lines, training, corpora, workers or profile.runtime.data.workers)


def _shown(value: object) -> str:
    """A field of a payload as in a profile, or a dash for a missing one."""
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _training_seconds(lines: Sequence[PlannedStage], expected: Mapping[str, Estimate]) -> float | None:
    """The seconds of pretraining: measured if it is stored, otherwise expected."""
    (line,) = (line for line in lines if line.name == "pretrain")
    if line.hit and line.manifest:
        return seconds_of(line.manifest) or None
    return expected["pretrain"].seconds if "pretrain" in expected else None


def _cells(line: PlannedStage, expected: Estimate | None, size: int | None, pool: Sequence[str]) -> tuple[str, ...]:
    """A line of the plan as a row of its table."""
    guess = "" if line.hit else "~"
    time = "" if line.hit else guess + duration(expected.seconds) if expected else "?"
    return (
        line.name,
        "[cyan]HIT[/]" if line.hit else "[yellow]MISS[/]",
        *pool,
        guess + size_of(size) if size is not None else "?",
        time,
        expected.source if expected else "" if line.hit else UNKNOWN,
        escape(line.why),
    )


def _as_json(
    store: Store, profile: Profile, line: PlannedStage, expected: Estimate | None, size: int | None
) -> dict[str, object]:
    manifest = line.manifest
    return {
        "stage": line.name,
        "hit": line.hit,
        "why": line.why,
        "pool": None if line.hit else profile.pool_of(whole_of(line.name)),
        "bytes": size,
        "seconds": manifest.facts.get("seconds") if manifest else None,
        "estimate": expected.model_dump() if expected else None,
        "resumes_at_step": resumes_at(store, line) or None,
        "forecast": line.forecast._asdict() if line.forecast else None,
    }


def _to_make(lines: list[PlannedStage], expected: Mapping[str, Estimate]) -> str:
    """The number of stages to make, and the time as far as it is known."""
    misses = [line.name for line in lines if not line.hit]
    if not misses:
        return "Nothing to make."
    unknown = [name for name in misses if name not in expected]
    seconds = sum(expected[name].seconds for name in misses if name in expected)
    parts = [f"about {duration(seconds)}"] * (len(unknown) < len(misses))
    parts += [f"unknown for {', '.join(unknown)}"] * bool(unknown)
    return f"{len(misses)} to make: {', '.join(parts)}."


def show_posttraining(
    console: Console,
    profile: Profile,
    to_make: Collection[str],
    shape: Shape | None,
    parameters: int | None,
    gpu: Device | None,
) -> None:
    """Print the memory that each process needs in post-training, for the stages `to_make`. `shape` is that of the
    pretraining before, if any, and `parameters` are those of the model that the chain begins with."""
    links = [name for name in LINKS if name in to_make]
    if not links:
        return
    loads = "the first process gathers the whole model" if divided(profile) else "each process loads the whole model"
    ranks, size, hosted = profile.runtime.training.processes, "4 bytes a parameter", ""
    if parameters is not None:
        hosted = f", {size_of(ranks * 4 * parameters)} on a host" if ranks > 1 and not divided(profile) else ""
        size = size_of(4 * parameters)
        with console.status("tracing steps of post-training"):
            found = needs(profile, links, shape, parameters, cuda=gpu is not None)
        _show_needs(console, found, profile.runtime, gpu)
    console.print(f"{', '.join(links)}: {loads} in float32, {size}{hosted}.", soft_wrap=True)


def _show_needs(console: Console, found: Mapping[str, Need], runtime: Runtime, gpu: Device | None) -> None:
    room = gpu.memory if gpu else machine.memory() // runtime.training.processes
    where = f"of {gpu.title}" if gpu else "of this machine"
    table = new_table("stage", "memory", "for", right=["memory"], title="Memory of a process in post-training")
    for name, need in found.items():
        what = f"at most: {need.most}" if need.most else f"at least: the states of its model, as {need.why}"
        over = f". [red]Does not fit[/] in {size_of(room)} {where}" if need.bytes > room else ""
        table.add_row(name, f"{'' if need.most else '> '}{size_of(need.bytes)}", what + over)
    if found:
        console.print()
        console.print(table)
    if any(need.most and need.bytes > room for name, need in found.items() if name != "merge"):
        console.print(_smaller(runtime), soft_wrap=True)


def _smaller(runtime: Runtime) -> str:
    """What makes a step of post-training smaller that isn't done yet."""
    given = runtime.posttrain
    ways = [
        ("lower runtime.posttrain.micro_batch", given.micro_batch != 1),
        ("set runtime.posttrain.recompute to full", given.recompute != "full"),
        ("set runtime.posttrain.offload to optimizer", given.engine == "deepspeed" and given.offload == "none"),
        ("divide the model over more processes, by fsdp or ZeRO 3", True),
        ("train an adapter", True),
        ("lower max_length", True),
    ]
    named = "; ".join(way for way, left in ways if left)
    return f"To make it smaller: {named}."


def _parameters(profile: Profile, training: TrainingPlan | None) -> int | None:
    """The parameters of the model that post-training begins with, or None for a base that isn't on this machine."""
    if training is not None:
        return training.parameters
    return None if profile.base is None else parameters_of_base(profile.base)


def show_model(console: Console, shape: Shape) -> None:
    """Print what the size dial derives, or what a base has, and by which rule."""
    table = new_table("", "value", "rule", right=["value"], title="The model")
    for what, value, rule in explain(shape):
        number = isinstance(value, int) and not isinstance(value, bool)
        table.add_row(what, f"{value:,}" if number else str(value), rule)
    console.print()
    console.print(table)


def show_why(console: Console, stage: str, name: str, overrides: list[str]) -> None:
    """Print the fields that differ from the nearest earlier artifact, one a line."""
    profile = load(name, overrides)
    line = plan(profile, session_of(profile, stage))[-1]
    if line.name != stage:
        console.print(f"{stage}: not reached. {NO_NEWS}", soft_wrap=True)
        return
    if line.hit:
        assert line.manifest is not None
        how = escape(line.manifest.adopted) or "made"
        console.print(f"{stage}: HIT, {stage}/{line.manifest.key[:12]} {how} {line.manifest.created}.")
    else:
        console.print(f"{stage}: MISS, {escape(line.why)}")
    if line.payload is None:
        return
    key = line.payload.key() if line.hit else ""
    other = nearest(session_of(profile).store, line.payload, but=key)
    if other is None:
        return
    if line.hit:
        console.print("The nearest other artifact differs in these fields:")
    table = new_table("field", f"{other.key[:12]} ({other.created})", "now")
    for path, old, new in differences(other.payload.model_dump(), line.payload.model_dump()):
        table.add_row(f"{stage}.{path.removeprefix('config.')}", escape(_shown(old)), escape(_shown(new)))
    console.print(table)
