"""Everything that a report shows, gathered from a store: the page draws this and nothing else.

An artifact that is gone is named, and what it alone knew is left out. In a release, where anybody may read it, texts of
documents, local paths and what describes the machine are left out too. The result depends only on the store, not on the
time or the place of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from flows.records.figures import figures_of
from flows.records.settings import by_kind, chosen
from flows.report.costs import Costs, costs_of
from flows.report.data import Data, data_of
from flows.report.lineage import Lineage, Node
from flows.report.reading import cleaned, mapping, number, rows
from flows.report.results import Results, results_of
from flows.report.training import Tokens, Training, parameters_of, tokens_of, trainings_of
from profiles.stage_names import AT_THE_END, TRAINED
from storage import refs
from storage.errors import StoreError
from storage.manifest import Manifest
from storage.store import Store
from tasks.download.config import EMBEDDED_LICENCES

FORMAT = 1  # of the JSON
KINDS = {"export": "release", "evaluate": "evaluation", "pretrain": "base model"}
ANSWERS, ON_CARD = 6, 3  # prompts with the answers of all models, and those that a card has too
ROWS = 20  # of a stage's table on its card
EXAMPLES = "Examples"  # a table with texts of documents, which are shown masked elsewhere
OF_MACHINE = ("commit", "changes", "system", "machine")
LAST = (*reversed(AT_THE_END), *reversed(TRAINED))  # stages that end a run, the furthest first


class Card(BaseModel):
    """An artifact of the lineage."""

    location: str
    stage: str
    state: str
    part: bool  # of a stage, which obtained it while it worked
    inputs: dict[str, str] = {}
    uses: dict[str, str] = {}
    digest: str = ""
    version: int | None = None
    created: str = ""
    how: str = ""
    summary: str = ""
    bytes: int | None = None
    seconds: float | None = None
    settings: dict[str, str] = {}
    counts: dict[str, float] = {}
    files: dict[str, tuple[int, int]] = {}  # number and bytes by kind
    tables: dict[str, list[dict[str, Any]]] = {}


class Headline(BaseModel):
    """The artifact that the report is about, and the numbers by which a reader places it."""

    name: str
    kind: str
    location: str
    digest: str
    created: str
    model: str = ""
    parameters: int | None = None
    tokens: int | None = None
    bits_per_byte: float | None = None
    documents_in: int | None = None
    documents_kept: int | None = None
    seconds: float
    bytes: int
    versions: dict[str, str] = {}
    sources: list[str] = []


class Report(BaseModel):
    """A run, as the lineage of one artifact shows it."""

    format: int = FORMAT
    headline: Headline
    gone: list[str] = []  # artifacts of the lineage that the store no longer has, or not intact
    data: Data | None = None
    tokens: Tokens | None = None
    trainings: list[Training] = []
    results: Results | None = None
    costs: Costs
    lineage: list[Card]


def find(store: Store, name: str) -> str:
    """The location of what a user's text names: as `refs.resolve`, or a profile's last artifact. Raises StoreError."""
    if "/" not in name:
        profile, at, number = name.partition("@")
        known = {one.rpartition("/")[2] for one in refs.names(store) if one.rpartition("/")[0] == profile}
        order = [*LAST, "tokenize", "tokenizer", "filter", "dedup", "synthesise", "base", "download"]
        if last := next((stage for stage in order if stage in known), None):
            return refs.resolve(store, f"{profile}/{last}{at}{number}")
    return refs.resolve(store, name)


def report_of(
    store: Store, name: str, *, price: float | None = None, examples: int = 2, release: bool = False
) -> Report:
    """The report of an artifact. `release` is for readers anywhere: see the module. Raises StoreError."""
    lineage = Lineage(store, find(store, name))
    root = lineage.nodes[lineage.root].manifest
    if root is None:
        state = lineage.nodes[lineage.root].state
        raise StoreError(f"{name} is {state}: a report needs its manifest.", "Name another: `gristmill store ls`")
    stages = lineage.stages()
    data = data_of(lineage, _licences(stages), 0 if release else examples)
    results = results_of(lineage, answers=ON_CARD if release else ANSWERS)
    trainings = trainings_of(lineage, samples=not release)
    costs = costs_of(lineage, price)
    gathered = Report(
        headline=_headline(name, lineage, root, data, trainings, results, costs, release),
        gone=[f"{node.location} is {node.state}" for node in lineage.nodes.values() if node.manifest is None],
        data=data,
        tokens=tokens_of(lineage),
        trainings=trainings,
        results=results,
        costs=costs,
        lineage=[_card(node, node.location not in lineage.whole, release) for node in lineage.nodes.values()],
    )
    return Report.model_validate(cleaned(gathered.model_dump(mode="json"), release))


def _licences(stages: Mapping[str, Manifest]) -> dict[str, str]:
    """The licence of each source, as the release states it."""
    stated = {str(one.get("name")): str(one.get("licence") or "") for one in rows(_provenance(stages).get("sources"))}
    return {**EMBEDDED_LICENCES, **{name: licence for name, licence in stated.items() if licence}}


def _provenance(stages: Mapping[str, Manifest]) -> Mapping[str, Any]:
    return mapping(stages["export"].payload.config, "provenance") if "export" in stages else {}


def _headline(
    name: str,
    lineage: Lineage,
    root: Manifest,
    data: Data | None,
    trainings: list[Training],
    results: Results | None,
    costs: Costs,
    release: bool,
) -> Headline:
    stages = lineage.stages()
    model = _model(stages, trainings)
    bits = {one.model: one.value for one in results.bits if one.source == "all"} if results else {}
    pretrained = next((one for one in trainings if one.stage == "pretrain"), None)
    seen = pretrained.figures if pretrained else {}
    held = data.steps if data else []
    return Headline(
        name=name.partition("@")[0] if release else name,
        kind=KINDS.get(root.stage, f"artifact of {root.stage}"),
        location=lineage.root,
        digest=root.digest,
        created=root.created,
        model=model,
        parameters=parameters_of(stages),
        tokens=int(seen["tokens_seen"]) if "tokens_seen" in seen else None,
        bits_per_byte=bits.get(model, bits.get("base", seen.get("validation_bits_per_byte"))),
        documents_in=held[0].came_in if held else None,
        documents_kept=held[-1].kept if held else None,
        seconds=costs.seconds,
        bytes=root.size,
        versions={key: one for key, one in root.environment.items() if not release or key not in OF_MACHINE},
        sources=[one.name for one in data.sources] if data else [],
    )


def _model(stages: Mapping[str, Manifest], trainings: list[Training]) -> str:
    """The link of the chain that is released, or else the last one."""
    return str(_provenance(stages).get("link") or (trainings[-1].stage if trainings else ""))


def _card(node: Node, part: bool, release: bool) -> Card:
    card = Card(location=node.location, stage=node.stage, state=node.state, part=part)
    manifest = node.manifest
    if manifest is None:
        return card
    told = {} if release or part else {**mapping(manifest.counts, "tables"), **mapping(manifest.facts, "tables")}
    tables = {title: rows(found)[:ROWS] for title, found in told.items() if title != EXAMPLES}
    return Card(
        location=node.location,
        stage=node.stage,
        state=node.state,
        part=part,
        inputs=dict(node.inputs),
        uses=dict(node.uses),
        digest=manifest.digest,
        version=manifest.payload.version,
        created=manifest.created,
        how="" if release else manifest.adopted,
        summary=str(manifest.counts.get("summary", "")),
        bytes=manifest.size,
        seconds=number(manifest.facts.get("seconds")),
        settings=dict(chosen(manifest)),
        counts={name: value for name, value in figures_of(manifest).items() if number(value) is not None},
        files=dict(by_kind(manifest)),
        tables={title: [dict(row) for row in found] for title, found in tables.items()},
    )
