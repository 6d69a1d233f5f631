"""The provenance of a release: what its profile and the manifests of earlier stages say about its data and training.

It is part of export's config, and so of its key: it holds only what a rerun of the same profile would give again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from profiles.schema import Profile
from storage.artifact import Artifact
from storage.manifest import Manifest
from tasks.download.config import EMBEDDED_LICENCES, EmbeddedSource, HubSource
from tasks.export.card.provenance import DocumentLicence, Provenance, StatedSource, Synthetic, Training
from tasks.posttrain.merge.config import MergeConfig
from tasks.posttrain.methods import METHODS
from tasks.training.chain import BASE, BESIDE

MEASURES = (
    "steps",
    "tokens_seen",
    "epochs",
    "train_loss",
    "validation_loss",
    "validation_bits_per_byte",
    "train_rewards_accuracies",
    "validation_rewards_accuracies",
)
TOKENS = "Tokens by source and split"  # the table of `tokenize`
LICENCES = "Documents by licence"  # the table of `download`
EMBEDDED_PAIRS = {"instructions": ("encyclopedia-en", "small-talk"), "preferences": ("encyclopedia-en",)}


def provenance_of(
    profile: Profile, stages: Mapping[str, Artifact], links: Mapping[str, Artifact], link: str
) -> Provenance:
    """The provenance of the release of one `link` of the chain, whose data went through `stages`. Adopted artifacts and
    those not made yet add nothing."""
    chain = list(links)[: list(links).index(link) + 1]
    trained = {name: found for name in chain if (found := _manifest(links[name])) is not None}
    base, languages = profile.base, profile.filter and profile.filter.language
    return Provenance(
        link=link,
        base=base.named if base else "",
        base_repository=(base.repository or "") if base else "",
        base_licence=profile.export.licences.get(BASE, "") if profile.export else "",
        sources=list(_sources(profile, chain, _learned(stages))),
        document_licences=_document_licences(stages, _learned(stages)) if profile.pretrain else [],
        synthetic=_synthetic(profile, stages),
        languages=languages.allowed if languages and profile.pretrain else [],
        funnel=_funnel(stages),
        training=[one for found in trained.values() if (one := _training(profile, found)) is not None],
        precision=next(filter(None, (_precision(found) for found in reversed(trained.values()))), ""),
    )


def _manifest(artifact: Artifact) -> Manifest | None:
    found = artifact.manifest
    return None if found is None or found.adopted else found


def _training(profile: Profile, found: Manifest) -> Training | None:
    """What the card says of a stage of the chain. None for one that changed nothing, such as `base`."""
    measures = {name: found.counts[name] for name in MEASURES if name in found.counts}
    how = _how(getattr(profile, found.stage, None))
    return Training(stage=found.stage, how=how, measures=measures) if how or measures else None


def _how(section: Any) -> str:
    """How a stage changed the model, as far as its name doesn't say it."""
    if isinstance(section, MergeConfig):
        models = [f"{weight:g} × {one.named}" for weight, one in zip(section.weights, section.models, strict=True)]
        return f"{section.method} of {', '.join(models)}"
    adapter, rewards = getattr(section, "adapter", None), getattr(section, "rewards", None)
    parts = [adapter.words] if adapter is not None else []
    parts += [f"rewards: {', '.join(one.title for one in rewards)}"] if rewards else []
    return "; ".join(parts)


def _funnel(stages: Mapping[str, Artifact]) -> dict[str, int]:
    """Documents that each stage kept, then the tokens of the training and held-out splits."""
    left: dict[str, int] = {}
    for name, artifact in stages.items():
        counts = found.counts if (found := _manifest(artifact)) else {}
        if name == "tokenize":
            left |= {
                f"tokenize, tokens {split}": counts[split]["tokens"]
                for split in ("train", "validation")
                if split in counts
            }
        elif "documents" in counts:
            left[f"{name}, documents"] = counts["documents"]["kept"]
    return left


def _precision(manifest: Manifest) -> str:
    """The precision of a training: from its counts, or from its config if that decides."""
    asked = manifest.payload.config.get("precision", "")
    return str(manifest.counts.get("precision", "" if asked == "auto" else asked))


def _learned(stages: Mapping[str, Artifact]) -> frozenset[str] | None:
    """The sources that have tokens (the filter may have removed all of one), or None if that isn't known."""
    found = _manifest(stages["tokenize"]) if "tokenize" in stages else None
    rows = found.counts.get("tables", {}).get(TOKENS) if found else None
    return None if rows is None else frozenset(row["source"] for row in rows if row["tokens"])


def _synthetic(profile: Profile, stages: Mapping[str, Artifact]) -> Synthetic | None:
    """What a model wrote of the text that was trained on, counted once the text has tokens."""
    config = profile.synthesise
    if config is None:
        return None
    found = _manifest(stages["tokenize"]) if "tokenize" in stages else None
    rows = [row for row in found.counts.get("tables", {}).get(TOKENS, []) if row["split"] == "train"] if found else []
    by_source = {row["source"]: row for row in rows}
    counted = {}
    if whole := by_source.get("all"):
        mine = [by_source[name] for name in config.new_sources if name in by_source]
        counted = {measure: sum(row[measure] for row in mine) for measure in ("documents", "tokens")}
        counted["share"] = round(counted["tokens"] / max(1, whole["tokens"]), 4)
    return Synthetic(model=config.model, prompts=[prompt.name for prompt in config.prompts], **counted)


def _document_licences(stages: Mapping[str, Artifact], learned: frozenset[str] | None) -> list[DocumentLicence]:
    """The licences that documents state, of the sources in `learned`, or of all if that is None."""
    named = (stages[name] for name in ("download", "synthesise") if name in stages)
    rows = [
        row for one in named if (found := _manifest(one)) for row in found.counts.get("tables", {}).get(LICENCES, [])
    ]
    return [DocumentLicence.model_validate(row) for row in rows if learned is None or row["source"] in learned]


def _sources(profile: Profile, chain: list[str], learned: frozenset[str] | None) -> Iterator[StatedSource]:
    """Every source that a link up to the released one learns from, directly or through a model beside the chain.
    Sources of documents only if they are in `learned`, unless that is None."""
    roles = {"documents"} if profile.pretrain else set[str]()
    after = profile.links.index(chain[-1]) + 1 if chain[-1] in profile.links else 0
    for link in profile.links[:after]:
        if profile.reads_download(link) and (link in chain or link in BESIDE):
            roles.add(METHODS[link].reads(profile.download.roles) if link in METHODS else "instructions")
    stated = {**EMBEDDED_LICENCES, **(profile.export.licences if profile.export else {})}
    for source in profile.download.sources:
        if isinstance(source, EmbeddedSource):
            documents = [name for name in source.names if learned is None or name in learned]
            pairs = {role: names for role, names in EMBEDDED_PAIRS.items() if getattr(source, role)}
            used = {"documents": documents, **pairs}
            for name in dict.fromkeys(name for role in used if role in roles for name in used[role]):
                as_what = [role for role in used if role in roles and name in used[role]]
                yield StatedSource(name=name, used_as=as_what, licence=stated.get(name, ""))
        elif source.role in roles and (source.role != "documents" or learned is None or source.name in learned):
            hub = {"dataset": source.dataset, "revision": source.revision} if isinstance(source, HubSource) else {}
            yield StatedSource(name=source.name, used_as=[source.role], licence=stated.get(source.name, ""), **hub)
    if profile.synthesise is not None and "documents" in roles:
        origins = profile.synthesise.sources or profile.download.document_sources
        licences = dict.fromkeys(stated[name] for name in origins if name in stated)
        for name in (one for one in profile.synthesise.new_sources if learned is None or one in learned):
            licence = stated.get(name, " and ".join(licences))
            yield StatedSource(name=name, used_as=["documents"], licence=licence)
