"""Coverage-guided fuzzing of one door by atheris (libFuzzer): pip install atheris."""

from __future__ import annotations

import tempfile
from pathlib import Path

from storage.errors import GristmillError
from tests.fuzz.doors import DOORS
from tests.fuzz.run import CASE_SECONDS, MEMORY, corpus

INSTRUMENTED = ["storage", "profiles", "tasks.download", "tasks.evaluate", "tasks.training", "tasks.children"]


def run_guided(name: str, seconds: float, seed: int, found: Path) -> None:
    """Look for inputs that reach new code, until one fails, which is kept in `found`. Does not return."""
    import atheris

    door = DOORS[name]
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        inputs, place = Path(folder, "inputs"), Path(folder, "door")
        for path in (inputs, place):
            path.mkdir()
        for number, data in enumerate([*door.seeds(), *(path.read_bytes() for path in corpus(name))]):
            (inputs / str(number)).write_bytes(data)

        def read(data: bytes) -> None:
            try:
                door.read(data, place)
            except GristmillError:
                return

        with atheris.instrument_imports(include=INSTRUMENTED):  # no kernels: numba compiles what it finds
            read(door.seeds()[0])
        limits = [f"-max_total_time={seconds:.0f}", f"-timeout={CASE_SECONDS:.0f}", f"-rss_limit_mb={MEMORY >> 20}"]
        atheris.Setup(["fuzz", str(inputs), *limits, f"-seed={seed}", f"-artifact_prefix={found}/"], read)
        atheris.Fuzz()
