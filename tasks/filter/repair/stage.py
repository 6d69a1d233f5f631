"""The nested stage `repair`. Heavy libraries are imported when it runs."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.filter.repair.config import RepairConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=3, part_of="filter", runtime=("data",))
def repair(config: RepairConfig, documents: Artifact, out: Output) -> None:
    """Repair texts: mojibake and HTML entities (ftfy, Speer 2019), control characters, white space, wrapped lines.

    Writes documents/ with unchanged IDs, and ledger/: a row per changed document with the number of characters changed
    (value), in total and by repair (detail). A document with only white space left is removed.
    """
    from tasks.filter.repair.run import repair_documents

    repair_documents(config, documents, out)
