"""Faults of disks: each ends in a sentence, whatever a library makes of it."""

from __future__ import annotations

import resource
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import StoreError
from storage.files.disk import DiskFaults, cant_write, disk_fault, disk_full
from tests.file_systems import read_only, small

DATA = np.random.default_rng(0).integers(0, 255, 1 << 20, dtype=np.uint8)


def _safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": DATA}, path)


def _torch(path: Path) -> None:
    import torch

    torch.save(torch.from_numpy(DATA), path)


def _tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models

    vocabulary = {f"token {number}": number for number in range(20_000)}
    Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(path))


def _gguf(path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), "llama")
    writer.add_tensor("a", DATA.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()


def _sqlite(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE a (b)")
        connection.execute("INSERT INTO a VALUES (?)", (DATA.tobytes(),))


def _tree(path: Path) -> None:
    try:
        shutil.copytree(Path(np.__file__).parent / "linalg", path)  # it has files of some hundred kilobytes
    finally:
        shutil.rmtree(path)


WRITERS: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(DATA.tobytes()),
    lambda path: DATA.tofile(path),
    lambda path: np.save(path, DATA),
    lambda path: np.savez(path, DATA),
    lambda path: pq.write_table(pa.table({"a": DATA}), path, compression="zstd"),
    _safetensors,
    _torch,
    _tokenizer,
    _gguf,
    _sqlite,
    _tree,
]


def test_a_full_disk_is_known_by_what_each_library_says(tmp_path: Path) -> None:
    with small(tmp_path / "small") as folder:
        for write in WRITERS:
            with pytest.raises(Exception) as caught:  # noqa: PT011  whatever type it is
                write(folder / "file")
            assert disk_full(caught.value) is not None, caught.value
            with pytest.raises(StoreError, match=r"small is full\. export stopped"), DiskFaults(folder, "export"):
                write(folder / "file")
            (folder / "file").unlink(missing_ok=True)


def test_a_limit_on_the_size_of_a_file_is_no_full_disk(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for write in (write for write in WRITERS if write is not _sqlite):  # whose error is that of a disk
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        try:
            with (
                pytest.raises(StoreError, match=r"limit of 0\.1 MB.*export stopped") as caught,
                DiskFaults(None, "export"),
            ):
                write(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "ulimit -f" in caught.value.remedy


def test_what_could_not_be_copied_is_one_file_and_its_reason() -> None:
    several = shutil.Error([("/a", "/store/a", "[Errno 28] No space left on device"), ("/b", "/store/b", "x")])
    found = disk_fault(several)
    assert found is not None
    assert found.message == "The disk is full: /store/a: [Errno 28] No space left on device"


def test_a_disk_that_can_only_be_read_is_known_too(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with read_only(tmp_path / "store"):
        for write in (WRITERS[0], _safetensors, _torch, _tokenizer):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                write(tmp_path / "store" / "file")
            assert cant_write(caught.value), caught.value


def test_a_disk_that_fails_is_named_with_the_file() -> None:
    path = Path("/proc/self/mem")  # whose first byte can't be read
    with pytest.raises(StoreError, match="Input/output error") as caught, DiskFaults(Path("/data"), "dedup"):
        path.read_bytes()
    assert "/data can't be used" in caught.value.message, "a read names no file"
    assert "dmesg" in caught.value.remedy


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(FileNotFoundError), DiskFaults(Path("/data"), "dedup"):
        Path("/missing").read_bytes()
