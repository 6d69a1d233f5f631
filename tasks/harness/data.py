"""The one seam through which lm-evaluation-harness gets its data, so that a task's definition stays as it is.

A task calls `datasets.load_dataset(path, name)` for its data when it is created. Here that call gets the prepared data:
the definition is not rewritten, and nothing is fetched behind anybody's back. The data is in
`data/NUMBER/SPLIT.parquet`, as Parquet keeps the columns' types, and `data/index.json` maps the numbers to data sets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import DamagedArtifact, SourceError, make_again

if TYPE_CHECKING:
    from datasets import Dataset

INDEX = "index.json"
Splits = Mapping[str, "Dataset"]
Load = Callable[[str, str | None], Splits]  # (path, name) of a data set, as a definition names it


@contextmanager
def serving(load: Load) -> Iterator[None]:
    """Within the block, every task gets its data from `load`."""
    import datasets

    def answer(path: str, name: str | None = None, **_: Any) -> Splits:
        return load(path, name)

    before = datasets.load_dataset
    datasets.load_dataset = answer
    try:
        yield
    finally:
        datasets.load_dataset = before


def save(data_sets: Mapping[tuple[str, str | None], Splits], folder: Path) -> None:
    """Write data sets, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for number, (path, name) in enumerate(sorted(data_sets, key=lambda key: (key[0], key[1] or ""))):
        splits = data_sets[path, name]
        index.append({"path": path, "name": name, "splits": sorted(splits)})
        for split, rows in splits.items():
            target = folder / str(number) / f"{split}.parquet"
            target.parent.mkdir(exist_ok=True)
            rows.to_parquet(target)
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def saved(folder: Path) -> Load:
    """The data sets that `save` wrote, in the form for `serving`. Loading raises DamagedArtifact for data that can't be
    read, SourceError for data that a definition requests but `download` didn't prepare."""
    import pyarrow.parquet as pq
    from datasets import Dataset, DatasetDict
    from datasets.table import InMemoryTable

    try:
        index = {
            (row["path"], row["name"]): (str(number), row["splits"])
            for number, row in enumerate(json.loads((folder / INDEX).read_text(encoding="utf-8")))
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedArtifact(f"{folder / INDEX} can't be read: {error}.", make_again("download")) from error

    def load(path: str, name: str | None) -> Splits:
        if (path, name) not in index:
            requested = path if name is None else f"{path}, {name}"
            raise SourceError(
                f"A task requests the data set {requested}, which was not prepared.", make_again("download")
            )
        number, splits = index[path, name]
        try:
            data: Splits = DatasetDict(
                {split: Dataset(InMemoryTable(pq.read_table(folder / number / f"{split}.parquet"))) for split in splits}
            )
            return data
        except (OSError, ValueError) as error:
            raise DamagedArtifact(f"{folder / number} can't be read: {error}.", make_again("download")) from error

    return load
