"""Checks that run before expensive work: every stage has something to read, and later stages can use what is made.

A plan asks the first before anything is made. A run asks the last as soon as the inputs that they need exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.markup import escape

from flows.estimates.planned_stage import PlannedStage
from flows.pages.losses import emptied_sources
from flows.provenance import TOKENS
from models.pretrained import load_config
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.errors import ConfigError, EmptyOutput, harmless
from tasks.base.more_rows import check_rows
from tasks.base.source import known_config, unreadable
from tasks.download import check_first_rows
from tasks.download.config import EmbeddedSource
from tasks.evaluate import EvaluateConfig
from tasks.export import check_formats
from tasks.export.formats import FORMATS
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.methods import METHODS
from tasks.posttrain.pair_lengths import check_pairs
from tasks.pretrain.base import shape_of_base
from tasks.pretrain.fim_tokens import read_fim_tokens
from tasks.pretrain.long_context.extend import as_extended
from tasks.significance.gates import gate_references
from tasks.stage.decorator import STAGES, Reached
from tasks.tokenizer.extension import check_extendable
from tasks.training.adapters.lora import check_adapters
from tasks.training.chain import LINKS

OTHERS = ("prune", "best_of_n", "feedback", "draft")  # stages besides the methods that read instructions
NO_NEWS = "Nothing new: earlier runs (dedup.against) have all documents, so the stages after dedup were skipped."


def check_references(profile: Profile) -> None:
    """Raises ConfigError for a ref of a gate that the store doesn't have."""
    gate_references(profile.evaluate.gates if profile.evaluate else [])


def end_without_news(unique: Artifact) -> None:
    """End the run after dedup if earlier runs, which `dedup.against` names, have all documents. Raises Reached."""
    if without_news(unique):
        raise Reached(unique)


def without_news(unique: Artifact) -> bool:
    """Whether dedup kept nothing. False before it is made."""
    counts = unique.manifest.counts if unique.manifest else {}
    return bool(counts.get("documents", {}).get("kept") == 0)


def check_kept(profile: Profile, clean: Artifact) -> None:
    """Raises EmptyOutput for a source with a weight in a mixture of which the filter kept nothing."""
    mixed = profile.pretrain.mixed_sources if profile.pretrain else set()
    for source, reasons in emptied_sources(clean).items() if mixed else ():
        if source in mixed:
            first = reasons.most_common(1)[0][0]
            raise EmptyOutput(
                f"pretrain.mixture gives {source} a weight, but the filter removed all its {reasons.total():,} "
                f"documents, most by {first}.",
                f"`gristmill explain --removed-by {first}` lists them. Loosen the rules, or leave the source out.",
            )


def check_base(profile: Profile, model: Artifact | None) -> None:
    """Before documents are prepared for a base, check that it can be trained on them."""
    if model is None or profile.pretrain is None:
        return
    config, runtime, extends = profile.pretrain, profile.runtime.pretrain, profile.tokenizer.extend
    first = next(name for name in ("synthesise", "dedup", "filter", "tokenize") if getattr(profile, name) is not None)

    def check(reached: Mapping[str, Any]) -> None:
        shape_of_base(model.path, config, runtime)
        if config.fim_rate:
            read_fim_tokens(model.path, load_config(model.path).vocab_size)
        if extends:
            check_extendable(model.path)
            check_rows(model.path)
        with as_extended(model.path, config) as folder:
            check_formats(reached.get("export"), folder, wide=is_wide(model))

    STAGES[first].before({"export": profile.export}, check)


def check_pretraining(profile: Profile, pairs: Artifact, tokenizer: Artifact, tokens: Artifact) -> None:
    """Before `pretrain` is made, check that enough pairs fit its context, that text is held out of each source with a
    gate, and what `check_first_link` does for a base that is trained on."""
    assert profile.pretrain is not None
    if profile.pretrain.model is None:
        _before_training(profile, "pretrain", tokenizer, pairs, tokens)
        return
    context = profile.pretrain.model.context

    def check(reached: Mapping[str, Any]) -> None:
        check_gated_sources(reached.get("evaluate"), tokens)
        check_pairs(_reading_download(profile, reached), pairs, tokenizer, context)

    STAGES["pretrain"].before({**_methods(profile), "evaluate": profile.evaluate}, check)


def check_gated_sources(config: EvaluateConfig | None, tokens: Artifact) -> None:
    """Raises ConfigError for a gate on a source of which no document is held out."""
    rows = tokens.manifest.counts.get("tables", {}).get(TOKENS, []) if tokens.manifest else []
    held_out = {row["source"] for row in rows if row["split"] == "validation" and row["tokens"]}
    for path, names in config.named_sources().items() if config and rows else ():
        for name in (one for one in names if one not in held_out):
            raise ConfigError(
                f"evaluate.{path} is {name}, but no document of {name} is held out.",
                "Raise tokenize.validation_share, or leave the gate out.",
            )


def check_first_link(profile: Profile, model: Artifact, pairs: Artifact) -> None:
    """Before the first link trains an existing model, check that formats, adapters and pairs suit it."""
    for first in profile.links[:1]:
        _before_training(profile, first, model, pairs)


def _before_training(
    profile: Profile, stage: str, model: Artifact, pairs: Artifact, tokens: Artifact | None = None
) -> None:
    trained = profile.pretrain
    context = trained.context if trained and trained.rope_scaling else None  # else the base's own

    def check(reached: Mapping[str, Any]) -> None:
        with as_extended(model.path, trained) as folder:
            check_formats(reached.get("export"), folder, wide=is_wide(model))
            check_rollouts(reached, folder)
        if tokens is not None:
            check_gated_sources(reached.get("evaluate"), tokens)
        check_adapters({name: reached[name].adapter for name in _methods(profile) if name in reached}, model.path)
        check_pairs(_reading_download(profile, reached), pairs, model, context)

    links: dict[str, Any] = {name: getattr(profile, name) for name in profile.links}
    STAGES[stage].before({**links, "evaluate": profile.evaluate, "export": profile.export}, check)


def check_rollouts(reached: Mapping[str, Any], folder: Path) -> None:
    """Raises ConfigError for a model that llama.cpp can't compute, if it is to sample answers."""
    for name, config in reached.items():
        rollout = getattr(config, "rollout", None)
        if rollout is not None and rollout.engine == "llama.cpp":
            try:
                FORMATS["gguf-f32"].check(folder)
            except ConfigError as error:  # its remedy is that of an export
                raise ConfigError(
                    f"{name}.rollout.engine is llama.cpp. {error.message}", "Choose another engine."
                ) from error


def check_known_adapters(profile: Profile, planned: Collection[str]) -> None:
    """Raises ConfigError for an adapter of the stages to come that the base can't have, if its config is on this
    machine."""
    adapters = {name: config.adapter for name, config in _methods(profile).items() if name in planned}
    if profile.base is not None and any(adapters.values()) and (known := known_config(profile.base)) is not None:
        with suppress(*unreadable()):
            check_adapters(adapters, known)


def is_wide(base: Artifact) -> bool:
    """Whether a base has weights beyond float16. False for one that was taken before its stage counted them."""
    return base.manifest is not None and "largest_weight" in base.manifest.counts


def _methods(profile: Profile) -> dict[str, PosttrainConfig]:
    """The configs of the training methods, in the order of the chain."""
    return {name: getattr(profile, name) for name in profile.links if name in METHODS}


def _reading_download(profile: Profile, reached: Mapping[str, Any]) -> dict[str, PosttrainConfig]:
    """The methods that a run reaches and that read pairs of `download`."""
    return {name: reached[name] for name in _methods(profile) if name in reached and profile.reads_download(name)}


def check_sources(profile: Profile, lines: Iterable[PlannedStage]) -> None:
    """Raises ConfigError for a stage of these lines that reads rows which no source has, SourceError for files whose
    first rows lack what is read from them."""
    lines = list(lines)
    lacking = {
        name: role for name, role in _readers(profile, {line.name for line in lines}) if not _brings(profile, role)
    }
    if lacking:
        reads = " and ".join(f"{name} reads {role}" for name, role in lacking.items())
        null = [name for name in lacking if name in (*LINKS, "draft")]
        or_null = f", or set {' and '.join(null)} to null" if null else ""
        roles = " and ".join(f"`role: {role}`" for role in dict.fromkeys(lacking.values()))
        raise ConfigError(f"{reads}, but no source of download has any.", f"Add a source with {roles}{or_null}.")
    if any(line.name == "download" and not line.hit for line in lines):
        check_first_rows(profile.download)


def told_of_unread(profile: Profile, reached: Iterable[str]) -> Iterator[str]:
    """A sentence for documents that the mixture of `pretrain` leaves out, and for each source that no stage of a whole
    run reads. `reached` are the stages of this run."""
    reached = {*reached}
    if profile.pretrain and profile.pretrain.mixture is not None and "pretrain" in reached:
        mixed = profile.pretrain.mixed_sources
        if left_out := [escape(harmless(name)) for name in profile.document_sources if name not in mixed]:
            yield f"pretrain.mixture leaves out {', '.join(left_out)}: prepared like the others, but not trained on."
    if reached != {*profile.stage_names}:
        return
    read = {role for _, role in _readers(profile, profile.stage_names)}
    for source in profile.download.sources:
        if isinstance(source, EmbeddedSource) or source.role in read:
            continue
        base = " The profile begins with a base model, so it reads only pairs." if not profile.pretrain else ""
        yield f"No stage reads the {source.role} of {escape(harmless(source.name))}.{base}"


def _readers(profile: Profile, reached: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The stages, of those `reached`, that read rows of `download`, with the role of the rows."""
    if profile.pretrain:
        yield "pretrain", "documents"
    for name in (*profile.links, "draft"):
        if name not in reached or getattr(profile, name) is None:
            continue
        if name in METHODS and profile.reads_download(name):
            yield name, METHODS[name].reads(profile.download.roles)
        elif name in OTHERS:
            yield name, "instructions"


def _brings(profile: Profile, role: str) -> bool:
    """Whether a source has rows of a role."""
    for source in profile.download.sources:
        if isinstance(source, EmbeddedSource):
            if role == "documents" or getattr(source, role, None):
                return True
        elif source.role == role:
            return True
    return False
