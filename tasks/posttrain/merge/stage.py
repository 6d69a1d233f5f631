"""The `merge` stage: several models that were trained from one base become one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.kernels.virtual_tokens import virtual_tokens
from models.pretrained import load_config
from models.tokenizer import copy_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.maintain import lineage_of
from tasks.base import base as take
from tasks.base.source import fingerprint, model_of
from tasks.posttrain.merge.config import MergeConfig, MergedModel
from tasks.stage import stage
from tasks.stage.output import Output
from tasks.stage.session import current
from tasks.training.adopted_model import check_model
from tasks.training.model_folder import check_tokenizer


def sources(config: MergeConfig) -> dict[str, str]:
    """The identities of the models from elsewhere. Raises SourceError, ConfigError."""
    return {
        f"merge.{one.named}: {name}": digest
        for number, one in enumerate(config.models)
        if one.base is not None
        for name, digest in fingerprint(one.base, f"merge.models.{number}.base").items()
    }


def check_adopted(config: MergeConfig, folder: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Check that a folder made elsewhere has a model/ with the tokenizer of the base.
    Raises DamagedArtifact, TokenizerMismatch."""
    check_model(folder, inputs["base"].path)


@stage(version=1, runtime=("compute",), sources=sources, adopted=check_adopted)
def merge(config: MergeConfig, base: Artifact, links: Mapping[str, Artifact], out: Output) -> None:
    """Merge models that were trained from `base`: a weighted sum of their changes to it (Wortsman et al. 2022, Ilharco
    et al. 2023), TIES (Yadav et al. 2023) or DARE (Yu et al. 2024). `links` are those of the models that are links.

    Writes model/. Raises ConfigError for a model with another tokenizer, with tensors of other names or shapes, or
    known to be trained from another base.
    """
    from tasks.posttrain.merge.combine import combined

    digest = check_tokenizer(base.path)
    models = {one.named: _model(one, links, base, out) for one in config.models}
    for one, model in zip(config.models, models.values(), strict=True):
        as_it_is = [Path(one.base.folder).expanduser()] if one.base is not None and one.base.folder else []
        if digest not in map(tokenizer_digest, (model.path, *as_it_is)):  # `base` rewrites them
            raise ConfigError(
                f"merge.models: {one.named} has another tokenizer or chat template than the base of the chain.",
                "Merge models that were trained from this base.",
            )
        if virtual_tokens(load_config(model.path)):
            raise ConfigError(
                f"merge.models: {one.named} has virtual tokens, which are no part of its weights.", "Leave it out."
            )
    out.progress(0, 1, "steps", "combining")
    merged, norms = combined(config, base.path, {name: model.path for name, model in models.items()})
    merged.save_pretrained(out.path / "model")
    copy_tokenizer(base.path, out.path / "model")
    names, weights = [*models, "merged"], [f"{weight:g}" for weight in config.weights]
    rows = zip(names, [*weights, ""], norms, strict=True)
    out.table("Merge", [{"model": name, "weight": of_it, "change": f"{norm:.4g}"} for name, of_it, norm in rows])
    out.count(models=len(models), change=round(norms[-1], 6), summary=f"{', '.join(models)} by {config.method}")


def _model(one: MergedModel, links: Mapping[str, Artifact], base: Artifact, out: Output) -> Artifact:
    if one.link is not None:
        return links[one.link]
    assert one.base is not None
    if one.base.artifact is None:
        return out.obtain(take, one.base, name=f"base.{one.named}").part("model")
    model, session = model_of(one.base.artifact), current()
    if session is not None and base.location and base.location not in lineage_of(session.store, model.location):
        raise ConfigError(
            f"merge.models: {one.named} wasn't trained from {base.location}, the base of the chain.",
            "Merge models that were trained from one base.",
        )
    out.uses[f"merge.models {one.named}"] = model.origin
    return model
