"""What is left out where it is not needed, in fresh processes, and is there again for those who do need it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from storage.shards.documents import Document, write_documents

STAGE = """
import sys
from pathlib import Path
from storage.artifact import Artifact
from tasks.dedup import DedupConfig, dedup
from tasks.stage.output import Output
folder = Path(sys.argv[1])
dedup.function(DedupConfig(), Artifact.at(folder / "in"), Output.at(folder))
assert not {"pandas", "scipy.linalg", "scipy.sparse"} & set(sys.modules)
"""
AFTERWARDS = """
import numba, numpy, pyarrow
assert pyarrow.table({"a": [1]}).to_pandas()["a"].tolist() == [1]
assert numba.njit(lambda a: a @ a)(2 * numpy.eye(2)).tolist() == [[4, 0], [0, 4]]
"""


def test_dedup_imports_neither_pandas_nor_scipys_algebra_and_both_work_afterwards(tmp_path: Path) -> None:
    write_documents(tmp_path / "in" / "00000.parquet", [Document.new(text, "a") for text in ("one", "two", "One")])
    done = subprocess.run(
        [sys.executable, "-c", STAGE + AFTERWARDS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
