"""How much more work a stage has now than when an earlier artifact of it was made, and by what that is known.

download           bytes of its sources: files as they are now, the others as they were read
pretrain           floating-point operations
post-training      epochs
evaluate           questions of its benchmarks × parameters of its models
export             formats × parameters of the model
other data stages  bytes of the text that they read
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from flows.estimates.planned import Pending, PlannedStage
from models.presets import ShapeError, count_parameters, derive, flops_per_token
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.manifest import Manifest
from storage.store import Store
from tasks.download.config import DownloadConfig, FileSource
from tasks.download.sources.files import size
from tasks.evaluate.config import EvaluateConfig
from tasks.export.config import ExportConfig
from tasks.pretrain import PretrainConfig
from tasks.stage.decorator import STAGES

MODELS = "models."  # begins the names of the models that are evaluated


class Training(NamedTuple):
    """The pretraining of a profile: its work, and how long that takes by arithmetic, where that was asked for."""

    flops: int
    steps: int
    parameters: int
    seconds: float | None = None


class Growth(NamedTuple):
    """Seconds of the earlier making that are the same for any size, how many times the others come now, by what."""

    fixed: float = 0.0
    ratio: float = 1.0
    by: str = ""


def training_of(profile: Profile, seconds: float | None = None) -> Training | None:
    """Without a look at the device; None of a profile that doesn't pretrain."""
    if profile.pretrain is None:
        return None
    shape = derive(profile.pretrain.model, profile.tokenizer.vocab_size)
    steps = profile.pretrain.total_steps(shape)
    tokens = profile.pretrain.samples(steps) * shape.context
    return Training(flops_per_token(shape) * tokens, steps, count_parameters(shape), seconds)


def growth(
    store: Store, line: PlannedStage, earlier: Manifest, training: Training | None, read: Mapping[str, float]
) -> Growth:
    """Of a stage that must be made since `earlier` was; `read` has the bytes of text that come out of stages before."""
    facts = earlier.facts
    seconds, killed = float(facts.get("seconds", 0)), float(facts.get("earlier_seconds", 0))
    if line.name == "pretrain" and training is not None:
        fixed, done = seconds * float(facts.get("starting_share", 0.0)), _flops(earlier)
        return Growth(fixed, training.flops / done, "operations") if done else Growth()
    if "training_seconds" in facts:
        epochs, once = line.config.model_dump().get("epochs"), earlier.payload.config.get("epochs")
        ratio = epochs / once if epochs and once else 1.0
        return Growth(max(0.0, seconds - killed - float(facts["training_seconds"])), ratio, "epochs")
    if isinstance(line.config, DownloadConfig):
        return _times(*_sources(line.config, earlier), "the bytes of its sources")
    if isinstance(line.config, EvaluateConfig):
        return _evaluation(store, line, line.config, earlier, training)
    if isinstance(line.config, ExportConfig):
        return _export(store, line, line.config, earlier, training)
    return _times(text_in(line, read), facts.get("bytes_in"), "the bytes of text")


def _times(now: float | None, before: float | None, by: str) -> Growth:
    return Growth(ratio=now / before, by=by) if now and before else Growth()


def _flops(pretrained: Manifest) -> float:
    """Model FLOPs of an earlier pretraining, by its config and the vocabulary that its parameters tell of; 0 where that
    can't be said."""
    tokens, parameters = pretrained.counts.get("tokens_seen"), pretrained.counts.get("parameters")
    try:
        config = PretrainConfig.model_validate(pretrained.payload.config)
        shape = derive(config.model, int(pretrained.counts.get("vocab_size", 0)) or _vocabulary(config, parameters))
    except (ValidationError, ShapeError, ValueError):
        return 0.0
    return float(flops_per_token(shape) * tokens) if tokens else 0.0


def _vocabulary(config: PretrainConfig, parameters: int | None) -> int:
    """The vocabulary with which a model has so many parameters: they grow linearly with it."""
    if parameters is None:
        raise ValueError("the number of parameters is not known")
    small, large = (count_parameters(derive(config.model, size)) for size in (1024, 2048))
    return max(1, round(1024 + 1024 * (parameters - small) / (large - small)))


def _sources(config: DownloadConfig, earlier: Manifest) -> tuple[float | None, float | None]:
    """Bytes of the sources now and when an earlier download read them. A source that is no whole file counts as it was
    read then; None where one of them is not known."""
    files: Mapping[str, int] = earlier.facts.get("source_bytes", {})
    rows = earlier.counts.get("tables", {}).get("Sources", [])
    characters = {row["source"]: row["characters"] for row in rows}

    def sizes(sources: DownloadConfig, *, now: bool) -> Iterator[float | None]:
        for source in sources.sources:
            whole = isinstance(source, FileSource) and source.limit is None
            if now and isinstance(source, FileSource) and whole:
                yield size(source)
            elif whole:
                yield files.get(source.names[0])
            else:
                yield from (characters.get(name) for name in source.names)

    try:
        before = [*sizes(DownloadConfig.model_validate(earlier.payload.config), now=False)]
    except ValidationError:  # of an earlier version
        return None, None
    return _sum([*sizes(config, now=True)]), _sum(before)


def _sum(numbers: list[Any]) -> float | None:
    return None if None in numbers else float(sum(numbers))


def _evaluation(
    store: Store, line: PlannedStage, config: EvaluateConfig, earlier: Manifest, training: Training | None
) -> Growth:
    expected = training and training.parameters
    inputs = STAGES[line.name].named(line.inputs)
    now = [_parameters(store, given, expected) for name, given in inputs.items() if name.startswith(MODELS)]
    before = [
        _parameters_at(store, ref.location, expected)
        for name, ref in earlier.origins.items()
        if name.startswith(MODELS)
    ]
    asked, answered = _questions(config, earlier)
    by = "questions × parameters of models"
    if None in now or None in before:
        now, before, by = [1.0] * len(now), [1.0] * len(before), "questions × models"
    return _times(asked * sum(map(float, filter(None, now))), answered * sum(map(float, filter(None, before))), by)


def _questions(config: EvaluateConfig, earlier: Manifest) -> tuple[float, float]:
    """Questions that a model is asked now, as far as earlier benchmarks tell how many there are, and was asked then."""
    before: dict[str, int] = {}
    for model in earlier.counts.get("scores", {}).values():
        for task, score in model.get("tasks", {}).items():
            if score.get("items"):
                before[task] = int(score["items"])
    answered = sum(before.values())
    usual = answered / len(before) if before else 1.0
    asked = 0.0
    for task in config.asked([*before]):
        limit, known = task.limit or config.max_items, before.get(task.label, usual)
        once = earlier.payload.config.get("max_items")
        asked += limit if limit and (limit < known or known == once) else known
    return asked or 1.0, answered or 1.0


def _export(
    store: Store, line: PlannedStage, config: ExportConfig, earlier: Manifest, training: Training | None
) -> Growth:
    expected, formats = training and training.parameters, earlier.payload.config.get("formats") or [""]
    ref, given = earlier.origins.get("model"), STAGES[line.name].named(line.inputs).get("model")
    now = _parameters(store, given, expected) if given else expected
    before = _parameters_at(store, ref.location, expected) if ref else None
    if not now or not before:
        return _times(len(config.formats), len(formats), "formats")
    return _times(len(config.formats) * now, len(formats) * before, "formats × parameters")


def _parameters(store: Store, model: Artifact, expected: int | None) -> float | None:
    """Of a model that is there; of one that is not made yet as many as are `expected`."""
    if isinstance(model, Pending) or model.manifest is None:
        return expected
    return _parameters_of(model.manifest)


def _parameters_at(store: Store, location: str, expected: int | None) -> float | None:
    found = None if location.startswith("/") else store.manifest(location)
    return expected if found is None else _parameters_of(found)


def _parameters_of(manifest: Manifest) -> float | None:
    """As they were counted, or by the bytes of weights in float32."""
    weights = sum(entry.size for name, entry in manifest.files.items() if name.endswith(".safetensors"))
    return float(manifest.counts.get("parameters", 0)) or weights / 4 or None


def text_in(line: PlannedStage, read: Mapping[str, float]) -> float | None:
    """Bytes of text that a stage will read: of its input, or as its input is expected to have."""
    given = STAGES[line.name].named(line.inputs).get("documents")
    if given is None:
        return None
    if given.manifest is not None:
        return given.manifest.facts.get("text_bytes")
    return read.get(given.location.partition("/")[0])


def text_out(line: PlannedStage, manifest: Manifest, growth: Growth) -> float:
    """Bytes of text of a stage's documents: of what is there, or as an earlier run kept them of what it read."""
    wrote = float(manifest.facts.get("text_bytes", 0))
    return wrote if line.hit else wrote * growth.ratio
