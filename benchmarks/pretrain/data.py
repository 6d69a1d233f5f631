"""Token shards and tokenizer of a profile, made by its stages in a store beside the data of other benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import ROOT
from storage import refs
from storage.store import Store


def data_of(profile: str, folder: Path, *changes: str) -> tuple[Path, Path]:
    """Folders of the token shards and of the tokenizer of a profile with `changes`; made on the first call."""
    url = str(folder / "store")
    settings = [f"--set={change}" for change in (f"runtime.store={url}", *changes)]
    command = [sys.executable, "-m", "flows.cli", "run", profile, "--to", "tokenize", *settings]
    subprocess.run(command, cwd=ROOT.parent, stdout=sys.stderr, check=True)
    store = Store(url)
    tokens, tokenizer = (
        store.get(refs.resolve(store, f"{profile}/{stage}")).path for stage in ("tokenize", "tokenizer")
    )
    return tokens, tokenizer
