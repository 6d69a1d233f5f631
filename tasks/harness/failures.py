"""Reports a failing task definition as an error that the user can fix: in the data, or in the definition's own code."""

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
    """Raises SourceError for a failure in the block, or ConfigError if it is in the code of `folder`. This includes
    sys.exit, which would otherwise end the run as a success."""
    from jinja2 import TemplateError

    try:
        yield
    except (*OF_DATA, *OF_CODE, TemplateError, SystemExit) as error:
        cause = f"{type(error).__name__} {error}".rstrip()
        if folder is not None and (line := _line_in(folder, error)):
            raise ConfigError(f"The code of the task {task} fails: {cause} ({line}).", "Fix that code.") from error
        raise SourceError(
            f"The data of the task {task} are not what its definition reads: {cause}.",
            "Give files with the columns and splits of the data set that the definition names, or rename columns by "
            "`columns`.",
        ) from error


def _line_in(folder: Path, error: BaseException) -> str:
    """The folder's last line on the way to the error, or an empty text if none led there."""
    root = folder.resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(root):
            return f"{path.name}, line {frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve().is_relative_to(root):
        return f"{Path(error.filename).name}, line {error.lineno}"
    return ""
