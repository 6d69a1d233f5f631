"""The one seam through which lm-evaluation-harness gets its data, so that a task's definition stays as it is.

A task asks `datasets.load_dataset(path, name)` for its data when it is made. Here that call is answered with what was
prepared: the definition is not rewritten, and nothing is fetched behind anybody's back. The data lie as Parquet, which
keeps the columns' types, in `data/NUMBER/SPLIT.parquet`; `data/index.json` says what each number stands for.
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
    """Within the block every task gets its data from `load`."""
    import datasets

    def answer(path: str, name: str | None = None, **_: Any) -> Splits:
        return load(path, name)

    before = datasets.load_dataset
    datasets.load_dataset = answer
    try:
        yield
    finally:
        datasets.load_dataset = before


def save(found: Mapping[tuple[str, str | None], Splits], folder: Path) -> None:
    """Write data sets, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for number, (path, name) in enumerate(sorted(found, key=lambda key: (key[0], key[1] or ""))):
        splits = found[path, name]
        index.append({"path": path, "name": name, "splits": sorted(splits)})
        for split, rows in splits.items():
            target = folder / str(number) / f"{split}.parquet"
            target.parent.mkdir(exist_ok=True)
            rows.to_parquet(target)
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def saved(folder: Path) -> Load:
    """What `save` wrote, as `serving` takes it. Raises DamagedArtifact for data that can't be read, SourceError for
    data that a definition asks for and that were not prepared."""
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
            asked = path if name is None else f"{path}, {name}"
            raise SourceError(f"A task asks for the data set {asked}, which was not prepared.", make_again("download"))
        number, splits = index[path, name]
        try:
            found: Splits = DatasetDict(
                {split: Dataset(InMemoryTable(pq.read_table(folder / number / f"{split}.parquet"))) for split in splits}
            )
            return found
        except (OSError, ValueError) as error:
            raise DamagedArtifact(f"{folder / number} can't be read: {error}.", make_again("download")) from error

    return load
