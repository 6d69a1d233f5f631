"""Documents that earlier dedups kept. A new crawl is compared with them through their sketches."""

from __future__ import annotations

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.dedup.config import DedupConfig
from tasks.stage.named_artifact import named_artifact


def earlier_digests(config: DedupConfig) -> dict[str, str]:
    """The digest of each artifact in `against`, as part of the stage's key."""
    return {name: artifact.digest for name, (artifact, _) in find_earlier(config).items()}


def find_earlier(config: DedupConfig) -> dict[str, tuple[Artifact, Artifact]]:
    """For each name in `against`, the dedup artifact and its sketches. Raises ConfigError for an unsuitable one."""
    found = {}
    for name in config.against:
        artifact = named_artifact("dedup.against", name)
        manifest = artifact.manifest
        if manifest is None or "sketches" not in manifest.uses:
            raise ConfigError(
                f"{name} in dedup.against is not an artifact of dedup.", "List the artifacts: `gristmill store ls`"
            )
        sketched = named_artifact("dedup.against", manifest.uses["sketches"].location)
        wanted = config.sketch.model_dump(mode="json")
        if sketched.manifest is None or sketched.manifest.payload.config != wanted:
            raise ConfigError(
                f"{name} in dedup.against was measured with other settings than dedup.sketch.",
                "Use the same settings, or deduplicate it again with these.",
            )
        found[name] = (artifact, sketched)
    return found
