"""KenLM scores lines, run by the peers' own environment: `kenlm_scores.py FOLDER`; no import of the project here.

The folder holds ours.arpa and scoring.txt; written is kenlm.npy, and printed are the CPU seconds of the scoring alone.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import kenlm
import numpy as np


def main() -> None:
    """Score every line as a sentence."""
    folder = Path(sys.argv[1])
    model = kenlm.Model(str(folder / "ours.arpa"))
    lines = (folder / "scoring.txt").read_text().splitlines()
    started = time.process_time()
    scores = [model.score(line) for line in lines]
    seconds = time.process_time() - started
    np.save(folder / "kenlm.npy", np.array(scores))
    print(json.dumps({"score": seconds}))


if __name__ == "__main__":
    main()
