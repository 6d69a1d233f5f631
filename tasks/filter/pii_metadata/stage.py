"""The stage that finds personal data in metadata."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.first_pass.measure import write_passed
from tasks.filter.pii_metadata.config import MetadataConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=8, name="pii_metadata", part_of="filter", runtime=("data",))
def metadata_signals(config: MetadataConfig, documents: Artifact, passed: Artifact | None, out: Output) -> None:
    """Find personal data in the documents' metadata, as `pii` does in their texts.

    Column: `pii_metadata`, a list of (field, entity, start, end, score), in characters of the field's value. A nested
    field is named by its path, as in `meta.url` and `tags[0]`. Null for documents that `passed` doesn't mark.
    """
    from tasks.filter.pii_metadata.measure import measure_metadata

    # In threads: metadata is short, and measured before worker processes would have started
    write_passed(
        functools.partial(measure_metadata, config), documents, passed, out, columns=["metadata"], releases_gil=True
    )
