"""The nested stage `repair`. What reads and changes text is imported when it runs."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.filter.repair.config import RepairConfig
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=1, part_of="filter", runtime=("data",))
def repair(config: RepairConfig, documents: Artifact, out: Output) -> None:
    """Repair texts: mojibake and HTML entities (ftfy, Speer 2019), control characters, white space, wrapped lines.

    Writes documents/, the ids as they were, and ledger/: a row for each changed document with the characters changed
    (value) and how many by which repair (detail). A document of which nothing is left but white space is removed.
    """
    from tasks.filter.repair.run import repair_documents

    repair_documents(config, documents, out)
