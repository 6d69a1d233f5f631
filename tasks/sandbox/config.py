"""The limits of a sandbox, and the isolation required of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig

Isolation = Literal["namespaces", "filters", "limits"]


class SandboxConfig(StageConfig):
    """The resources that a program may use. Each of them affects which programs pass."""

    seconds: float = Field(3.0, gt=0, le=3600, description="wall-clock time of a program with its tests")
    memory_mb: int = Field(1024, ge=64, le=1_000_000, description="address space of a program, in MB")
    files_mb: int = Field(16, ge=1, le=100_000, description="total size of the files that a program writes, in MB")
    open_files: int = Field(64, ge=16, le=1024, description="files that a program may have open at a time")
    threads: int = Field(32, ge=1, le=4096, description="threads of a program at a time (it can't start processes)")
    packages: bool = Field(True, description="whether programs can import the installed packages, numpy for instance")
    isolation: Isolation = Field(
        "filters",
        description="minimum isolation: namespaces (programs see no process, network or file except Python's own), "
        "filters (Landlock and seccomp refuse them, without any privilege) or limits (only of time and memory, unsafe "
        "for a model's programs). The best that the machine offers is used",
    )
