"""A task's definition that fails, on data that are not what it reads or by code of its own, told as what the user can
mend."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import ConfigError, SourceError

OF_DATA = (LookupError, ValueError, TypeError, AttributeError, StopIteration)
OF_CODE = (ArithmeticError, AssertionError, EOFError, ImportError, NameError, OSError, RuntimeError, SyntaxError)


@contextmanager
def failures_named(task: str, folder: Path | None) -> Iterator[None]:
    """Raises SourceError for what fails in the block, ConfigError where the code of `folder` does: also by sys.exit,
    which would end the run as if all were well."""
    from jinja2 import TemplateError

    try:
        yield
    except (*OF_DATA, *OF_CODE, TemplateError, SystemExit) as error:
        said = f"{type(error).__name__} {error}".rstrip()
        if folder is not None and (line := _line_in(folder, error)):
            raise ConfigError(f"The code of the task {task} fails: {said} ({line}).", "Mend it.") from error
        raise SourceError(
            f"The data of the task {task} are not what its definition reads: {said}.",
            "Give files with the columns and splits of the data set that the definition names, or rename them in "
            "columns.",
        ) from error


def _line_in(folder: Path, error: BaseException) -> str:
    """The last line of the folder's that led to the error; empty where none did."""
    root = folder.resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(root):
            return f"{path.name}, line {frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve().is_relative_to(root):
        return f"{Path(error.filename).name}, line {error.lineno}"
    return ""
