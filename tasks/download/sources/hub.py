"""Data sets of the Hugging Face hub, streamed at a fixed revision. Code in a data set is never executed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from storage.errors import SourceError
from tasks.download.config import HubSource
from tasks.download.sources.rows import Row


def read_rows(source: HubSource) -> Iterator[Row]:
    """The rows of a split, in order. Raises SourceError if the data set cannot be read."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    try:
        rows = load_dataset(source.dataset, source.subset, split=source.split, revision=source.revision, streaming=True)
    except (DatasetNotFoundError, ConnectionError, ValueError) as error:
        raise SourceError(
            f"Source {source.name}: the data set {source.dataset} can't be read: {error}.",
            "Check the name, the revision and the network, or download it and use a source of kind `files`.",
        ) from error
    for number, row in enumerate(islice(rows, source.limit), 1):
        yield Row(dict(row), f"{source.dataset} row {number}")
