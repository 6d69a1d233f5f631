"""An earlier swarm of fewer sources: its runs are used again after a source was added.

An old mixture is a mixture of the new sources too, of which the added ones have nothing. If the token shards are the
same, its run is in the store under the same key. An added source usually changes them, as the tokenizer has seen its
text too. The old models are then measured on the new held-out text, in bits per byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flows.matrix.measured import tokenized
from flows.matrix.run import Made
from profiles.schema import Profile
from storage import refs
from storage.artifact import Artifact
from storage.manifest import InputRef, Manifest
from storage.store import Store
from tasks.ablate.mix import MixConfig
from tasks.ablate.stage import place
from tasks.tokenize import TokenizeConfig


class Earlier(NamedTuple):
    """An earlier swarm: its mixtures, and their models, with the documents that they come from, dedup's ledger of these
    and the share that was held out. No models if they are in the store under the keys of the new runs."""

    swarm: list[dict[str, float]]
    models: list[Artifact]
    documents: Artifact | None = None
    ledger: Artifact | None = None
    validation_share: float = 0.0


def earlier_swarm(store: Store, ref: str, names: Sequence[str], proxy: Profile, tokens: Artifact) -> Earlier | None:
    """The newest swarm under a ref that mixed some of the sources `names`, by proxies of the same settings. None if
    there is none."""
    for entry in reversed(refs.history(store, ref)):
        manifest = store.manifest(entry.location)
        config = MixConfig.model_validate(manifest.payload.config) if manifest else None
        if manifest is None or config is None or not {*config.natural} < {*names}:
            continue
        origins = [_model(store, manifest.origins[f"text.{place(run, 0)}"]) for run in range(len(config.swarm))]
        models = [model for model in origins if model]
        if len(models) < len(origins):  # some were removed since
            continue
        made = [one for model in models if (one := store.manifest(model.location))]
        if any(_settings(one.payload.config) != _settings(_config(proxy)) for one in made):
            continue
        if all(one.payload.inputs["tokens"] == tokens.digest for one in made):
            return Earlier(config.swarm, [])
        documents, ledger, share = _documents(store, made[0])
        old = [store.get(model.location).part(model.part) for model in models]
        return Earlier(config.swarm, old, documents, ledger, share)
    return None


def _model(store: Store, text: InputRef) -> InputRef | None:
    """The model whose losses were measured, or None if it isn't stored any more."""
    measured = store.manifest(text.location)
    model = measured.origins["model"] if measured else None
    return model if model and store.manifest(model.location) else None


def _config(proxy: Profile) -> Mapping[str, object]:
    assert proxy.pretrain is not None
    return proxy.pretrain.model_dump(mode="json")


def _settings(config: Mapping[str, object]) -> dict[str, object]:
    """All settings of a training but its mixture."""
    return {name: value for name, value in config.items() if name != "mixture"}


def _documents(store: Store, model: Manifest) -> tuple[Artifact | None, Artifact | None, float]:
    """The documents that a model comes from, dedup's ledger of them, as far as they are stored, and the share that was
    held out."""
    tokenized = store.manifest(model.origins["tokens"].location)
    if tokenized is None:
        return None, None, 0.0
    share = TokenizeConfig.model_validate(tokenized.payload.config).validation_share
    first = origin = tokenized.origins["documents"]
    if store.manifest(first.location) is None:
        return None, None, share
    documents = store.get(first.location).part(first.part)
    while (made := store.manifest(origin.location)) and "documents" in made.origins:
        if made.stage == "dedup":
            return documents, store.get(origin.location).part("ledger"), share
        origin = made.origins["documents"]
    return documents, None, share


def both_documents(made: Made, old: Earlier | None) -> tuple[dict[str, Artifact], dict[str, Artifact]]:
    """The documents of a run and those of the earlier models, and dedup's ledgers of them. Nothing without such models,
    as all others have seen the same."""
    if old is None or not old.models or old.documents is None:
        return {}, {}
    ledgers = {"0": made["dedup"].part("ledger")} if "dedup" in made else {}
    return {"0": tokenized(made), "1": old.documents}, ledgers | ({"1": old.ledger} if old.ledger else {})
