"""`python -m tests.tasks.training.remote_run STORE DATA RUNTIME`: a tiny pretraining in a store, its digest printed.

RUNTIME is JSON: settings of the runtime. Notes go to standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from storage.store import Store
from tasks.pretrain import PretrainConfig, pretrain
from tasks.stage.display.progress import Observer
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.pretrain.tiny_training import CONFIG, make_data

LONG = PretrainConfig.model_validate({**CONFIG.model_dump(), "steps": 120, "snapshot_every": 40})


class Notes(Observer):
    """Print a note."""

    def noted(self, stage: str, message: str) -> None:
        """See the base class."""
        print(message, file=sys.stderr, flush=True)


def main(url: str, data: str, settings: str) -> None:
    """Train, or take the artifact from the store."""
    chosen: dict[str, Any] = {"checkpoint_every": 10, "log_every": 10, "preflight": "never", **json.loads(settings)}
    runtime = runtime_of(threads=1, device="cpu", **chosen).model_copy(update={"store": url})
    with open_session(Session(Store(url), runtime, "test", observer=Notes())):
        made, _ = pretrain.materialize(LONG, make_data(Path(data)))
    print(made.digest)


if __name__ == "__main__":
    main(*sys.argv[1:])
