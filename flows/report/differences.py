"""Two runs side by side: their numbers, the settings that differ, and which differences of their scores are real."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from flows.report.lineage import Lineage
from flows.report.reading import cleaned
from flows.report.report import FORMAT, Report, find, report_of
from storage.errors import ConfigError, StoreError
from storage.keys import differences
from storage.store import Store
from tasks.significance.answered import Answered
from tasks.significance.compare import as_json, compare, pair_up

DERIVED = "provenance"  # part of export's config, from the manifests of other stages
LONGEST = 120  # characters of a setting's value


class Setting(BaseModel):
    """A setting that differs in a stage that both have. Empty is unset."""

    stage: str
    key: str
    first: str
    second: str


class Number(BaseModel):
    """A number of both runs."""

    about: str
    name: str
    first: float | None
    second: float | None


class Comparison(BaseModel):
    """Two reports, and what sets them apart."""

    format: int = FORMAT
    first: Report
    second: Report
    shared: list[str]  # artifacts in both lineages
    only_first: list[str]  # stages
    only_second: list[str]
    settings: list[Setting]
    numbers: list[Number]
    tested: dict[str, Any]  # as `gristmill compare --json` prints it
    untested: str  # why scores weren't compared


def comparison_of(store: Store, one: str, other: str, *, price: float | None = None) -> Comparison:
    """Both reports, without texts of documents, and their differences. Raises StoreError."""
    first, second = (report_of(store, name, price=price, examples=0) for name in (one, other))
    mine, theirs = (Lineage(store, find(store, name)) for name in (one, other))
    ours, stages = mine.stages(), theirs.stages()
    settings = [
        Setting(stage=stage, key=key, first=_text(before), second=_text(after))
        for stage, manifest in ours.items()
        if stage in stages
        for key, before, after in differences(manifest.payload.config, stages[stage].payload.config)
        if not key.startswith(DERIVED)
    ]
    tested, untested = _tested(store, mine, theirs, one, other)
    found = Comparison(
        first=first,
        second=second,
        shared=[location for location in mine.nodes if location in theirs.nodes],
        only_first=[stage for stage in ours if stage not in stages],
        only_second=[stage for stage in stages if stage not in ours],
        settings=settings,
        numbers=list(_numbers(first, second)),
        tested=tested,
        untested=untested,
    )
    return Comparison.model_validate(cleaned(found.model_dump(mode="json")))


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _numbers(first: Report, second: Report) -> Iterator[Number]:
    """Every number that both reports may have, of which one has it at least."""
    ours, theirs = dict(_named(first)), dict(_named(second))
    for about, name in dict.fromkeys([*ours, *theirs]):
        yield Number(about=about, name=name, first=ours.get((about, name)), second=theirs.get((about, name)))


def _named(report: Report) -> Iterator[tuple[tuple[str, str], float]]:
    head = report.headline
    for name in ("parameters", "tokens", "bits_per_byte", "bytes", "seconds"):
        if (value := getattr(head, name)) is not None:
            yield ("run", name.replace("_", " ")), value
    for step in report.data.steps if report.data else ():
        yield ("documents kept", step.stage), step.kept
    if report.tokens:
        for name, number in (("ids", report.tokens.ids), ("bytes a token", report.tokens.bytes_per_token)):
            if number is not None:
                yield ("tokens", name), number
        for one in report.tokens.by_source:
            if one.tokens:
                yield ("tokens", f"{one.source}, {one.split}"), one.tokens
    for training in report.trainings:
        for name in ("train_loss", "validation_loss", "validation_bits_per_byte"):
            if name in training.figures:
                yield (training.stage, name.replace("_", " ")), training.figures[name]
    for bits in report.results.bits if report.results else ():
        yield (f"bits per byte, {bits.model}", bits.source), bits.value
    for form in report.results.formats if report.results else ():
        yield ("bytes of a format", form.name), form.bytes
    for cost in report.costs.stages:
        if cost.seconds is not None:
            yield ("seconds", cost.stage), cost.seconds


def _tested(store: Store, mine: Lineage, theirs: Lineage, one: str, other: str) -> tuple[Mapping[str, Any], str]:
    """The scores of both evaluations, tested question by question, or why they aren't."""
    found = [lineage.location_of("evaluate") for lineage in (mine, theirs)]
    if None in found:
        return {}, "Not both were evaluated."
    if found[0] == found[1]:
        return {}, "Both have the same evaluation."
    try:
        first, second = (
            Answered.of(store.get(place), name) for place, name in zip(found, (one, other), strict=True) if place
        )
        return as_json(compare(pair_up(first, None, second, None))), ""
    except (ConfigError, StoreError) as error:
        return {}, error.message
