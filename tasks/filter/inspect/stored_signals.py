"""The basis of a filter artifact's decisions: the documents that it read and the signals that it used, from the
store."""

from __future__ import annotations

from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.manifest import InputRef
from storage.store import Store
from tasks.filter.config import FilterConfig
from tasks.filter.families import first_and_last, signal_configs
from tasks.filter.family import PASSED
from tasks.filter.repair.stage import repair
from tasks.filter.side_files import Measured, measured_shards


def stored_signals(store: Store, profile: str, config: FilterConfig) -> list[Measured]:
    """The shards behind the profile's newest filter artifact, with the signals that `config` needs.

    Raises ConfigError if this artifact is missing, or was measured with other settings than those of `config`.
    """
    again = f"`gristmill run {profile} --to filter` measures it, with any thresholds."
    entries = refs.history(store, f"{profile}/filter")
    manifest = store.manifest(entries[-1].location) if entries else None
    if manifest is None:
        raise ConfigError(f"This store lacks filtered documents of {profile}.", again)
    documents = _input(store, manifest.uses.get(repair.name), "documents") or _input(
        store, manifest.origins["documents"]
    )
    assert documents is not None
    by_family: dict[str, Artifact] = {}
    last = {family.name for family in first_and_last(config)[1]}
    for name, measuring in signal_configs(config).items():
        signals = _input(store, manifest.uses.get(name))
        if signals is None or signals.manifest is None:
            raise ConfigError(f"{name} was not measured.", again)
        payload = signals.manifest.payload
        if payload.config != measuring.model_dump(mode="json") or (PASSED in payload.inputs) != (name in last):
            raise ConfigError(f"{name} was measured with other settings than this profile's.", again)
        by_family[name] = signals
    if last:
        marks = _input(store, manifest.uses[PASSED])
        assert marks is not None
        by_family[PASSED] = marks
    return measured_shards(documents, by_family)


def _input(store: Store, origin: InputRef | None, part: str = "") -> Artifact | None:
    if origin is None:
        return None
    artifact = store.get(origin.location)
    part = part or origin.part
    return artifact.part(part) if part else artifact
