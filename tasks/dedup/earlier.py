"""What a new crawl is compared with besides itself: the documents that earlier dedups kept, by their sketches.

An earlier artifact is named with its version (`tiny/dedup@3`, or a location), since a bare ref moves with every run:
a run that named its own would meet itself.
"""

from __future__ import annotations

from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.dedup.config import DedupConfig
from tasks.session import current


def earlier_digests(config: DedupConfig) -> dict[str, str]:
    """The digest of each artifact in `against`: part of the stage's key."""
    return {name: artifact.digest for name, (artifact, _) in find_earlier(config).items()}


def find_earlier(config: DedupConfig) -> dict[str, tuple[Artifact, Artifact]]:
    """For each name in `against`, the dedup artifact and its sketches. Raises ConfigError when one does not serve."""
    session = current()
    if config.against and session is None:
        raise ConfigError("dedup.against needs a store.", "Run the stage in a flow, or leave `against` empty.")
    found = {}
    for name in config.against:
        assert session is not None
        if "/" in name and "@" not in name and refs.history(session.store, name):
            latest = len(refs.history(session.store, name))
            raise ConfigError(f"dedup.against names {name}, which moves.", f"Name a version: {name}@{latest}.")
        artifact = session.store.get(refs.resolve(session.store, name))
        manifest = artifact.manifest
        if manifest is None or "sketches" not in manifest.uses:
            raise ConfigError(f"{name} in dedup.against is no artifact of dedup.", "Name one: `gristmill store ls`.")
        sketched = session.store.get(manifest.uses["sketches"].location)
        wanted = config.sketch.model_dump(mode="json")
        if sketched.manifest is None or sketched.manifest.payload.config != wanted:
            raise ConfigError(
                f"{name} in dedup.against was measured otherwise than dedup.sketch says.",
                "Take its settings over, or dedup it again with these.",
            )
        found[name] = (artifact, sketched)
    return found
