"""A user's own Python function: names it, digests its source and loads it.

The code that runs is the code that was digested. A file's bytes are read once and hashed before they run, so a cached
bytecode of an earlier version is never used. A package's module is imported in a worker process that has not imported
it before.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from importlib.abc import SourceLoader
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from storage.digest_cache import remembered_digest
from storage.errors import ConfigError, SourceError
from tasks.stage.config import StageConfig

Function = Callable[..., Any]


class UserFunction(StageConfig):
    """A function in a file, or of an installed package. `section` of the profile names it, for errors."""

    section: ClassVar[str]

    file: str | None = Field(
        None, min_length=1, description="Python file with the function, which is run. Its digest is part of the key"
    )
    function: str = Field(pattern=r"^[A-Za-z_]\w*$", description="name of the function in `file`")
    entry_point: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="in place of `file`, `package.module:function` of an installed package. Its version and the "
        "module's source are part of the key",
    )
    reads: list[str] = Field([], description="files that the function reads, whose digests are part of the key")

    @property
    def where(self) -> str:
        """The function's name in messages."""
        return self.entry_point or f"{self.file}:{self.function}"

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file is None) == (self.entry_point is None):
            raise ValueError("set one of them: a file, or an entry_point")
        return self


class Caught:
    """Catches anything that the user's code raises within the block, and keeps it in `error` to be reported. This
    includes a call of `exit`, which would end the run without a message."""

    error: Exception | SystemExit | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error if isinstance(error, Exception | SystemExit) else None
        return self.error is not None

    @property
    def message(self) -> str:
        """The error on one line: its type, and the first line of its text, which can be written as UTF-8."""
        line = str(self.error).strip().split("\n")[0][:200].encode(errors="backslashreplace").decode()
        return f"{type(self.error).__name__}: {line}" if line else type(self.error).__name__


class _BytesLoader(SourceLoader):
    """Loads a module from bytes. `SourceLoader` itself neither reads nor writes bytecode files."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        """The path that tracebacks show."""
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        """The source."""
        return self.source


def fingerprints(config: UserFunction) -> dict[str, str]:
    """Digests of the function's source and of the files that it reads. Raises SourceError if one is missing."""
    files = [*([config.file] if config.file else []), *config.reads]
    digests = {name: remembered_digest(_file(config, name)) for name in files}
    if config.entry_point:
        module = config.entry_point.partition(":")[0]
        owners = packages_distributions().get(module.split(".")[0], [])
        digests |= {f"package {name}": version(name) for name in sorted(set(owners))}
        digests[config.entry_point] = hashlib.sha256(_module_file(module).read_bytes()).hexdigest()
    return digests


def load(config: UserFunction, digests: dict[str, str]) -> Function:
    """Load the function. Raises ConfigError if this process finds another source than the one in the key, and
    SourceError for a source that can't be run or lacks the function."""
    changed = sorted(name for name, digest in fingerprints(config).items() if digests.get(name) != digest)
    if changed:
        raise ConfigError(
            f"A worker reads another {changed[0]} than the one in the artifact's key.",
            "Give every worker the same files and packages, don't change them during a run, and run again.",
        )
    with Caught() as caught:
        module = _run_file(config, config.file, digests) if config.file else importlib.import_module(_module_of(config))
    if caught.error is not None:
        raise SourceError(
            f"{config.file or _module_of(config)} can't be run: {caught.message}.",
            "Correct it so that it runs without arguments.",
        ) from caught.error
    name = config.function if config.file else str(config.entry_point).partition(":")[2]
    function = getattr(module, name, None)
    if not callable(function):
        known = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise SourceError(
            f"{config.file or _module_of(config)} lacks the function {name}. It has {', '.join(known) or 'none'}.",
            f"Correct the name under `{config.section}`.",
        )
    loaded: Function = function
    return loaded


def _run_file(config: UserFunction, name: str, digests: dict[str, str]) -> Any:
    path = _file(config, name)
    source = path.read_bytes()
    if hashlib.sha256(source).hexdigest() != digests[name]:
        raise ConfigError(f"{name} changed while it was read.", "Run again once nothing writes to it.")
    spec = importlib.util.spec_from_loader(f"gristmill_user_{path.stem}", _BytesLoader(path, source))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module_of(config: UserFunction) -> str:
    return str(config.entry_point).partition(":")[0]


def _file(config: UserFunction, name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        where = "" if path.is_absolute() else f" in {Path.cwd()}, where the run started"
        raise SourceError(f"{name} does not exist{where}.", f"Check the paths under `{config.section}`.")
    return path


def _module_file(module: str) -> Path:
    """The source file of a module. Imports the packages around it, but not the module itself."""
    with Caught() as caught:
        spec = importlib.util.find_spec(module)
    if caught.error is not None or spec is None:
        why = f": {caught.message}" if caught.error is not None else ""
        raise SourceError(f"The module {module} does not exist{why}.", "Install its package, or check the entry_point.")
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise SourceError(f"The module {module} lacks Python source.", "Name a module that is a .py file.")
    return Path(spec.origin)
