"""A user's function: found, known by its source, loaded.

What is run is what was digested: a file's bytes are read once and hashed before they are run, never a cached bytecode
of an earlier version, and a package's module is imported in a worker process that has not imported it before.
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
from typing import Any

from storage.digest_cache import remembered_digest
from storage.errors import ConfigError, SourceError
from tasks.filter.signals.config import PythonSignalConfig

Function = Callable[[list[Any]], Any]


class Caught:
    """Whatever the user's code raises within the block, in `error`: it may be anything, and is reported by name. A
    call of `exit` too, which would end the run in silence."""

    error: Exception | SystemExit | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error if isinstance(error, Exception | SystemExit) else None
        return self.error is not None

    @property
    def told(self) -> str:
        """The error on one line: its kind, and the first line of what it says."""
        said = str(self.error).strip().split("\n")[0][:200]
        return f"{type(self.error).__name__}: {said}" if said else type(self.error).__name__


class _Given(SourceLoader):
    """A module of these bytes. `SourceLoader` alone neither reads nor writes bytecode files."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        """Where tracebacks point to."""
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        """The source."""
        return self.source


def fingerprints(config: PythonSignalConfig) -> dict[str, str]:
    """Digests of the function's source and of the files that it reads. Raises SourceError for what is not there."""
    files = [*([config.file] if config.file else []), *config.reads]
    found = {name: remembered_digest(_file(name)) for name in files}
    if config.entry_point:
        module = config.entry_point.partition(":")[0]
        owners = packages_distributions().get(module.split(".")[0], [])
        found |= {f"package {name}": version(name) for name in sorted(set(owners))}
        found[config.entry_point] = hashlib.sha256(_module_file(module).read_bytes()).hexdigest()
    return found


def load(config: PythonSignalConfig, digests: dict[str, str]) -> Function:
    """The function. Raises ConfigError where this process finds another source than the key holds, and SourceError for
    a source that can't be run or has no such function."""
    changed = sorted(name for name, digest in fingerprints(config).items() if digests.get(name) != digest)
    if changed:
        raise ConfigError(
            f"A worker reads another {changed[0]} than the key was computed from.",
            "Give every worker the same files and packages, leave them alone during a run, and run again.",
        )
    with Caught() as caught:
        module = _run_file(config.file, digests) if config.file else importlib.import_module(_module_of(config))
    if caught.error is not None:
        raise SourceError(
            f"{config.file or _module_of(config)} can't be run: {caught.told}.", "Correct it; it needs no arguments."
        ) from caught.error
    name = config.function if config.file else str(config.entry_point).partition(":")[2]
    function = getattr(module, name, None)
    if not callable(function):
        known = sorted(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise SourceError(
            f"{config.file or _module_of(config)} has no function {name}; it has {', '.join(known) or 'none'}.",
            "Correct the name under `filter.signals`.",
        )
    found: Function = function
    return found


def _run_file(name: str, digests: dict[str, str]) -> Any:
    path = _file(name)
    source = path.read_bytes()
    if hashlib.sha256(source).hexdigest() != digests[name]:
        raise ConfigError(f"{name} changed while it was read.", "Run again once nothing writes to it.")
    spec = importlib.util.spec_from_loader(f"gristmill_signal_{path.stem}", _Given(path, source))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module_of(config: PythonSignalConfig) -> str:
    return str(config.entry_point).partition(":")[0]


def _file(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        seen = "" if path.is_absolute() else f" in {Path.cwd()}, where the run started"
        raise SourceError(f"There is no file {name}{seen}.", "Check the paths under `filter.signals`.")
    return path


def _module_file(module: str) -> Path:
    """The source of a module, which is not imported for it; the packages around it are."""
    with Caught() as caught:
        spec = importlib.util.find_spec(module)
    if caught.error is not None or spec is None:
        why = f": {caught.told}" if caught.error is not None else ""
        raise SourceError(f"There is no module {module}{why}.", "Install its package, or check the entry_point.")
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise SourceError(f"The module {module} has no Python source.", "Name a module that is a .py file.")
    return Path(spec.origin)
