"""A child that is killed after it wrote its result, or before if a file in its scratch folder says so."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tasks.children.spec import ChildSpec

if __name__ == "__main__":
    spec = ChildSpec.model_validate_json(Path(sys.argv[1]).read_text())
    if not (spec.scratch / "early").exists():
        spec.finish({"loss": 2.5})
    os.kill(os.getpid(), signal.SIGKILL)
