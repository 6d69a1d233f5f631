"""File systems that are full or can only be read: real ones where this user may mount, else a test is skipped."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small(folder: Path, size: str = "64k", files: int = 1000) -> Iterator[Path]:
    """A file system of its own with so much room, on `folder`."""
    folder.mkdir()
    _mount(["-t", "tmpfs", "-o", f"size={size},nr_inodes={files}", "tmpfs", str(folder)])
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder can't be written: mounted so for root, who may write anything else, or without the permission."""
    if os.geteuid() == 0:
        _mount(["--bind", str(folder), str(folder)])
        try:
            _mount(["-o", "remount,bind,ro", str(folder)])
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        return
    paths = [folder, *folder.rglob("*")]
    modes = [path.stat().st_mode for path in paths]
    for path, mode in zip(paths, modes, strict=True):
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


def _mount(arguments: list[str]) -> None:
    if subprocess.run(["mount", *arguments], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
