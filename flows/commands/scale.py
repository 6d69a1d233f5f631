"""`gristmill plan --scale 1TB`: the cost of a larger corpus, extrapolated from earlier runs in the store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from rich.console import Console

from flows.estimates.arithmetic import TrainingPlan
from flows.estimates.planned_stage import PlannedStage
from flows.tables import new_table
from models.compute import bill
from models.growth import LAWS, TOKEN, Growth, Measured, fit
from models.presets import flops_per_token
from profiles.schema import Profile
from storage.errors import ConfigError
from storage.manifest import Manifest
from storage.store import Store
from storage.units import bytes_of, duration, size_of
from tasks.dedup.forecast import forecast_dedup

GROWS = "dedup"  # the stage whose memory grows with the text, as far as runtime.data.memory_limit lets it


class Cost(NamedTuple):
    """The cost of one stage for one size of corpus."""

    stage: str
    growth: Growth
    core_hours: float
    memory: int  # bytes of the largest process
    bytes_in: float  # bytes of text read
    disk: float  # bytes of its artifact
    shuffle: int  # bytes spilled and sorted


def sizes_of(texts: Iterable[str]) -> list[int]:
    """Bytes of each `--scale`. Raises ConfigError."""
    try:
        return [bytes_of(text) for text in texts]
    except ValueError as error:
        raise ConfigError(f"--scale: {error}.", "Give a number and its unit.") from error


def costs(profile: Profile, store: Store, lines: Iterable[PlannedStage], text: int) -> list[Cost]:
    """The cost of `text` bytes for each data stage that earlier runs have measured."""
    manifests = dict(store.manifests())
    limit = float(profile.tokenizer.sample_bytes_per_source * len(profile.download.sources))
    stages = []
    for line in lines:
        law = LAWS.get(line.name)
        known = [*_alike(line, manifests)] if law and line.manifest else []
        if law is None or not known:
            continue
        size, largest = max(known, key=lambda each: each[0])
        sample = in_corpus(limit, size, largest)
        growth = fit(law, [measured(each, (size, largest), manifests) for each in known], sample)
        ratio = min(text, sample) / min(size, sample) if law.startswith("n, ") else text / size
        memory, shuffle = max(manifest.facts["peak_memory_bytes"] for _, manifest in known), 0
        if line.name == GROWS and profile.dedup is not None:
            documents = largest.counts["documents"]
            removed = sum(documents["removed"].values())
            forecast = forecast_dedup(
                profile.dedup, int(documents["in"] * ratio), profile.runtime, duplicates=int(removed * ratio)
            )
            memory, shuffle = max(memory, forecast.memory), forecast.disk
        hours = growth.seconds(text) / 3600
        read = largest.facts.get("bytes_in", size) * ratio
        stages.append(Cost(line.name, growth, hours, memory, read, largest.size * (1 if ratio < 1 else ratio), shuffle))
    return stages


def _alike(line: PlannedStage, manifests: Mapping[str, Manifest]) -> Iterator[tuple[int, Manifest]]:
    """Bytes of the whole corpus and manifest of each run of the stage with the same version and config (for download,
    any sources)."""
    assert line.manifest is not None
    like = line.manifest.payload
    for manifest in manifests.values():
        same = line.name == "download" or manifest.payload.config == like.config
        if manifest.stage != line.name or manifest.payload.version != like.version or not same:
            continue
        text = corpus_bytes(manifest, manifests)
        parts = [manifests[place.location] for place in manifest.uses.values() if place.location in manifests]
        if any(made.facts.get("share_reused") for made in (manifest, *parts)):
            continue  # it did not do all of the work
        if text and "cpu_seconds" in manifest.facts:
            yield text, manifest


def corpus_bytes(manifest: Manifest, manifests: Mapping[str, Manifest]) -> int:
    """Bytes of text of the download that an artifact comes from, or 0 if unknown."""
    if manifest.stage == "download":
        return int(manifest.facts.get("text_bytes", 0))
    above = manifest.origins.get("documents")
    manifest_above = manifests.get(above.location) if above else None
    return corpus_bytes(manifest_above, manifests) if manifest_above else 0


def measured(run: tuple[int, Manifest], largest: tuple[int, Manifest], manifests: Mapping[str, Manifest]) -> Measured:
    """Describe a run of a stage, given with the size of its corpus, for `fit`. Earlier stages may keep more of one
    corpus than of another, so the text is measured by what the stage read, as a part of the largest corpus."""
    size, made = run
    above = made.origins.get("tokenizer")
    learned = manifests.get(above.location) if above else made
    tokens = learned.counts.get("vocab_size", 0) if learned else 0
    text = in_corpus(made.facts.get("bytes_in", size), *largest)
    return Measured(round(text), made.facts["cpu_seconds"], in_corpus(tokens * TOKEN.get(made.stage, 0), *largest))


def in_corpus(sample: float, size: int, made: Manifest) -> float:
    """The size of the corpus of which a stage reads `sample` bytes. Earlier stages remove text: `made` read only a part
    of a corpus of `size` bytes."""
    return sample * size / float(made.facts.get("bytes_in", size))


def show_scale(
    console: Console,
    profile: Profile,
    store: Store,
    lines: list[PlannedStage],
    training: TrainingPlan | None,
    sizes: Iterable[int],
    workers: int,
) -> None:
    """Print a table for each size, and name the stages that no run has measured."""
    for text in sizes:
        found = costs(profile, store, lines, text)
        missing = _missing(lines, found)
        if missing:
            console.print(
                f"\n{', '.join(missing)}: no run in this store has measured {'it' if len(missing) == 1 else 'them'}. "
                "Run the profile on a few hundred megabytes, or better on two sizes, with the same store.",
                soft_wrap=True,
            )
        if found:
            _show(console, text, found, workers)
        if training is not None:
            _show_training(console, text, lines, training, store)


def scale_as_json(
    profile: Profile, store: Store, lines: list[PlannedStage], sizes: Iterable[int], workers: int
) -> list[dict[str, Any]]:
    """The tables for programs: the stages of each size, in bytes, seconds and core-hours."""
    told = []
    for text in sizes:
        found = costs(profile, store, lines, text)
        stages = [
            {
                "stage": one.stage,
                "grows_as": one.growth.law,
                "core_hours": one.core_hours,
                "fixed_cpu_seconds": one.growth.fixed,
                "memory_bytes": one.memory,
                "bytes_in": int(one.bytes_in),
                "disk_bytes": int(one.disk),
                "shuffle_bytes": one.shuffle,
                "measured_sizes": one.growth.measured,
                "measured_up_to_bytes": one.growth.largest,
            }
            for one in found
        ]
        total = sum(one.core_hours for one in found)
        told.append(
            {
                "text_bytes": text,
                "stages": stages,
                "not_measured": _missing(lines, found),
                "core_hours": total,
                "workers": workers,
                "hours": total / workers,
            }
        )
    return told


def _missing(lines: list[PlannedStage], found: list[Cost]) -> list[str]:
    """Stages that no run has measured."""
    known = {one.stage for one in found}
    return [line.name for line in lines if line.name in LAWS and line.name not in known]


def _show(console: Console, text: int, found: list[Cost], workers: int) -> None:
    heads = ("stage", "core-hours", "grows as", "memory", "reads", "disk", "from")
    title = f"{size_of(text)} of text"
    table = new_table(*heads, right=["core-hours", "memory", "reads", "disk"], title=title)
    for one in found:
        sizes = f"{one.growth.measured} {'size' if one.growth.measured == 1 else 'sizes'} of corpus"
        source = f"{sizes}, up to {size_of(one.growth.largest)}"
        numbers = map(size_of, (one.memory, one.bytes_in, one.disk))
        table.add_row(one.stage, _hours(one.core_hours), one.growth.law, *numbers, source)
    total = sum(one.core_hours for one in found)
    table.add_row("all", _hours(total), "", "", "", size_of(sum(one.disk for one in found)), "")
    console.print()
    console.print(table)
    worst = max(found, key=lambda one: one.core_hours)
    shuffle = sum(one.shuffle for one in found)
    console.print(
        f"{duration(3600 * total / workers)} on {workers} workers if all work is divided, most of it {worst.stage} "
        f"({worst.core_hours / total:.0%}). Memory is for one worker. Dedup sorts {size_of(shuffle)} of sketches and "
        "keys.",
        soft_wrap=True,
    )
    factor = text / min(one.growth.largest for one in found)
    if factor > 1000:
        far = f"{factor:,.0f} times the smallest corpus that a stage was measured on"
        console.print(f"This extrapolates to {far}. Measure a larger one before you trust it.", soft_wrap=True)


def _show_training(
    console: Console, text: int, lines: list[PlannedStage], training: TrainingPlan, store: Store
) -> None:
    """Print the GPU-hours of one epoch, from the measured tokens per byte of raw text."""
    (made,) = (line.manifest for line in lines if line.name == "tokenize")
    size = corpus_bytes(made, dict(store.manifests())) if made else 0
    if made is None or not size:
        return
    tokens = text * made.counts["train"]["tokens"] / size
    flops = flops_per_token(training.shape) * tokens * training.executed_flops / training.flops
    cost = bill(flops, training.device, devices=training.busy, products=training.products)
    if cost.device_hours is None or cost.hours is None:
        return
    console.print(
        f"{tokens:.3g} tokens. One epoch of the model takes {_hours(cost.device_hours)} hours of "
        f"{training.device.title}, {duration(3600 * cost.hours)} on {training.setup.devices}.",
        soft_wrap=True,
    )


def _hours(hours: float) -> str:
    if hours and hours < 100:
        return f"{hours:.{max(1, 2 - math.floor(math.log10(hours)) if hours < 1 else 1)}f}"
    return f"{hours:,.0f}"
