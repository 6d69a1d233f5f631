"""`python benchmarks/corpus_to_tokens/ours.py PROFILE STORE TOKENIZER`: the command, then what it counted, as JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

COUNTED = ("filter", "tokenize", "tokenizer")


def main() -> None:
    """Run, then read the manifests."""
    profile, store, tokenizer = sys.argv[1:4]
    command = [sys.executable, "-m", "flows.cli", "run", profile, "--to", "tokenize", "--store", store]
    subprocess.run(command, check=True, stdout=sys.stderr)
    folders = {name: next(Path(store, "artifacts", name).glob("*/manifest.json")).parent for name in COUNTED}
    counts = {name: json.loads((folder / "manifest.json").read_text())["counts"] for name, folder in folders.items()}
    shutil.copy(folders["tokenizer"] / "tokenizer.json", tokenizer)
    tokens = sum(counts["tokenize"][split]["tokens"] for split in ("train", "validation"))
    print(json.dumps({"kept": counts["filter"]["documents"]["kept"], "tokens": tokens}))


if __name__ == "__main__":
    main()
