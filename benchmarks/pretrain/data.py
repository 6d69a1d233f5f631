"""Token shards and tokenizer of a profile, made by its stages in a store beside the data of other benchmarks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import ROOT
from profiles.load import load
from storage import refs
from storage.store import Store


def data_of(profile: str, folder: Path, *changes: str) -> tuple[Path, Path]:
    """Folders of the token shards and of the tokenizer of a profile with `changes`; made on the first call."""
    tokens, tokenizer = _made(profile, folder, changes, ("tokenize", "tokenizer"))
    return tokens, tokenizer


def continued_data_of(profile: str, folder: Path) -> tuple[Path, Path]:
    """Folders of the token shards and of the base of a profile that trains one; made on the first call."""
    tokens, base = _made(profile, folder, (), ("tokenize", "base"))
    return tokens, base / "model"


def _made(profile: str, folder: Path, changes: Sequence[str], stages: Sequence[str]) -> list[Path]:
    url = str(folder / "store")
    settings = [f"--set={change}" for change in (f"runtime.store={url}", *changes)]
    command = [sys.executable, "-m", "flows.cli", "run", profile, "--to", "tokenize", *settings]
    subprocess.run(command, cwd=ROOT.parent, stdout=sys.stderr, check=True)
    store = Store(url)
    return [store.get(refs.resolve(store, f"{load(profile).name}/{stage}")).path for stage in stages]
