"""Several pieces of work of the same kind in one child, one after another: starting Python, torch and transformers
takes longer than many a measurement.

    for number, result in run_several("tasks.….measure", [(spec, out), …], on_line=…): …

`python -m tasks.children.several LIST` is the child: it runs the module's `run` on each spec.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.errors import GristmillError, LostProcess
from tasks.children.child import emit, run_as_child
from tasks.children.environment import training_environment
from tasks.children.spec import ChildSpec
from tasks.children.supervise import Keeps, check_plain, run_child
from tasks.stage.output import Output

OnLine = Callable[[int, dict[str, Any]], None]  # which of them, and what it said


def run_several(
    module: str, work: Sequence[tuple[ChildSpec, Output]], *, on_line: OnLine, keeps: Keeps = "nothing"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run the child, and yield the number and the result of each piece of work. Where it fails, those that are done
    are yielded first. Raises as `run_child`; the log is that of the first."""
    first, out = work[0]
    log, listed = out.scratch / "child.log", out.scratch / "several.json"
    for spec, _ in work:
        for written in (spec.scratch / "spec.json", spec.result, log, listed):
            check_plain(written)
        spec.result.unlink(missing_ok=True)
        (spec.scratch / "spec.json").write_text(spec.model_dump_json())
    specs = [str(spec.scratch / "spec.json") for spec, _ in work]
    listed.write_text(json.dumps({"module": module, "specs": specs}))
    at = 0

    def heard(line: dict[str, Any]) -> None:
        nonlocal at
        if "several" in line:
            at = line["several"]
        else:
            on_line(at, line)

    failure: GristmillError | None = None
    try:
        run_child(
            [sys.executable, "-m", "tasks.children.several", str(listed)],
            out=out, environment=training_environment(first.runtime.compute), log=log, on_line=heard, keeps=keeps,
        )  # fmt: skip
    except GristmillError as error:
        failure = error
    done = 0
    for number, (spec, _) in enumerate(work):
        if spec.result.exists():
            done += 1
            yield number, json.loads(spec.result.read_text())
    if failure is not None and not (isinstance(failure, LostProcess) and done == len(work)):
        raise failure


def run(path: Path) -> None:
    """The child's side."""
    asked = json.loads(path.read_text())
    module = importlib.import_module(asked["module"])
    for number, spec in enumerate(asked["specs"]):
        emit(several=number)
        module.run(Path(spec))


if __name__ == "__main__":
    run_as_child(run)
