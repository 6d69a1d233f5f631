"""A stage's declaration, and the identity of what it makes: its name, version, config and inputs. No Prefect, no store.

    @stage(version=1, runtime=("data",))
    def dedup(config: DedupConfig, documents: Artifact, out: Output) -> None: ...

An input is an artifact, a mapping of named artifacts (any number of models), or None for an optional input that is
absent. A call may leave out optional inputs at the end.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.keys import KeyPayload
from storage.manifest import InputRef
from tasks.stage.config import StageConfig
from tasks.stage.protocol import AdoptionCheck, Forecaster, Input, PartsOf, RuntimeCheck, Together
from tasks.stage.runtime import ComputeRuntime, Runtime
from tasks.stage.session import current, resources
from tasks.stage.source import source_digest

DeviceLock = Callable[[ComputeRuntime, Callable[[str], None]], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The arguments of `@stage`. All but `version` are optional."""

    version: int
    """Raise it by hand when results change."""
    name: str | None = None
    """The function's name by default."""
    part_of: str | None = None
    """The stage that obtains this one while it works."""
    section: str | None = None
    """The stage whose section of the profile this one has, if it has none of its own."""
    runtime: Sequence[str] = ()
    """The groups of the runtime that it reads."""
    sources: Callable[[Any], Mapping[str, str]] | None = None
    """(config) → a digest of everything that it reads from outside the store. They enter the key."""
    forecast: Forecaster | None = None
    """(config, documents, runtime) → the memory and disk that it will need. A plan shows it."""
    check: RuntimeCheck | None = None
    """(config, runtime) → None. Raises ConfigError for settings of the runtime that the stage can't honour. A run asks
    every stage before the first one starts."""
    check_here: RuntimeCheck | None = None
    """As `check`, for what this machine lacks. A plan, which may be for another machine, leaves it out."""
    adopted: AdoptionCheck | None = None
    """(config, folder, inputs) → None. Raises a GristmillError for a folder made elsewhere that can't be the stage's
    artifact. Without it, no folder can."""
    together: Together | None = None
    """(calls) → the number of each call that is done. Makes several artifacts that share something expensive, such as a
    loaded model."""
    parts: PartsOf | None = None
    """(config) → the config of each part that the stage will obtain, by name. A plan checks which are stored."""
    device_lock: DeviceLock | None = None
    """(compute, waiting) → a context. Held while the stage trains, so that no other run trains on the same devices."""


class StageIdentity:
    """A declared function: its inputs, and the key of the artifact that it would make."""

    def __init__(self, function: Callable[..., None], declared: Declaration) -> None:
        functools.update_wrapper(cast(Any, self), function)
        self.function = resources()(_filled(function))  # workers serve a whole call and end with it
        self.declared = declared
        self.name = declared.name or function.__name__
        self.version = declared.version
        self.part_of, self.section = declared.part_of, declared.section
        self.runtime = tuple(declared.runtime)
        self.sources, self.forecast = declared.sources, declared.forecast
        self.together, self.parts = declared.together, declared.parts
        parameters = list(inspect.signature(function).parameters)
        if parameters[0] != "config" or parameters[-1] != "out":
            raise ConfigError(
                f"Stage {self.name} takes ({', '.join(parameters)}).", "It must take (config, inputs…, out)."
            )
        self.input_names = parameters[1:-1]

    @property
    def source(self) -> str:
        """Digest of the source code that makes this stage's results."""
        return source_digest(self.function.__module__)

    def named(self, inputs: Sequence[Input]) -> dict[str, Artifact]:
        """The input artifacts by name: `documents`, or `models.base` for one of a mapping `models`."""
        artifacts: dict[str, Artifact] = {}
        for name, given in zip(self.input_names, _fill(inputs, len(self.input_names)), strict=True):
            if isinstance(given, Mapping):
                artifacts |= {f"{name}.{key}": artifact for key, artifact in sorted(given.items())}
            elif given is not None:
                artifacts[name] = given
        return artifacts

    def origins(self, inputs: Sequence[Input]) -> dict[str, InputRef]:
        """Where each input comes from, by name."""
        return {name: artifact.origin for name, artifact in self.named(inputs).items()}

    def payload(self, config: StageConfig, inputs: Sequence[Input]) -> KeyPayload:
        """The identity of this stage's artifact. `sources` outside the store are fingerprinted here."""
        digests = {name: artifact.digest for name, artifact in self.named(inputs).items()}
        digests |= {f"source:{name}": digest for name, digest in self.fingerprints(config).items()}
        return KeyPayload(stage=self.name, version=self.version, config=config.model_dump(mode="json"), inputs=digests)

    def fingerprints(self, config: StageConfig) -> Mapping[str, str]:
        """Digests of what lies outside the store: taken once a run, so that a plan and its run agree."""
        if self.sources is None:
            return {}
        session = current()
        if session is None:
            return self.sources(config)
        known = session.fingerprints.setdefault(f"{self.name} {config.model_dump_json()}", {})
        if not known:
            known |= self.sources(config)
        return known

    def check_runtime(self, config: StageConfig, runtime: Runtime) -> None:
        """Raises ConfigError for settings of the runtime that this stage can't honour."""
        if self.declared.check:
            self.declared.check(config, runtime)

    def check_here(self, config: StageConfig, runtime: Runtime) -> None:
        """Raises ConfigError for what the runtime needs and this machine lacks."""
        if self.declared.check_here:
            self.declared.check_here(config, runtime)


def _fill(inputs: Sequence[Input], number: int) -> tuple[Input, ...]:
    """The inputs, with None for those at the end that a call leaves out."""
    return (*inputs, *[None] * (number - len(inputs)))


def _filled(function: Callable[..., None]) -> Callable[..., None]:
    """A stage's function that may be called without its last, optional inputs."""
    parameters = list(inspect.signature(function).parameters.values())[1:-1]
    needed = max((n for n, one in enumerate(parameters, 1) if "None" not in str(one.annotation)), default=0)

    @functools.wraps(function)
    def call(config: StageConfig, *given: Any) -> None:
        *inputs, out = given
        filled = _fill(inputs, len(parameters)) if len(inputs) >= needed else inputs
        function(config, *filled, out)

    return call
