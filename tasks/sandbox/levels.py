"""Which isolation this machine offers. Each level is tried with a program, as a kernel may have one and refuse it."""

from __future__ import annotations

import functools
import sys

from storage.errors import ConfigError, LostWorker
from tasks.checks.check import Check, advice
from tasks.sandbox.config import Isolation, SandboxConfig
from tasks.sandbox.inside import landlock, seccomp
from tasks.sandbox.program import Program
from tasks.sandbox.worker import Means, Refused, Worker

LEVELS: tuple[Isolation, ...] = ("limits", "filters", "namespaces")  # the weakest first
WORDS = {
    "namespaces": "programs run in their own namespaces, without network, other processes or files",
    "filters": "programs run behind Landlock and seccomp: no network, no other processes, only their own files",
    "limits": "only limits of time and memory",
}
REMEDY = (
    "Use Linux 5.13 (2021) or later on x86_64 or aarch64, with Landlock among its security modules (the file "
    "/sys/kernel/security/lsm lists them). In a container, allow its system calls."
)


def check_linux() -> None:
    """Raises ConfigError on any system but Linux."""
    if sys.platform != "linux":
        raise ConfigError(
            f"A model's programs need a Linux sandbox to run in, and this system is {sys.platform}.",
            "Run this stage on Linux, or leave out the tasks that run programs: humaneval and mbpp.",
        )


@functools.cache
def means_here() -> Means:
    """The best means of isolation that work on this machine, each level tried once. Raises ConfigError on any system
    but Linux, and if not even a plain process can be started."""
    check_linux()
    lock, filters = landlock.version() > 0, seccomp.known()
    reasons = []
    for means in (
        Means(True, lock, filters),
        Means(False, lock, filters),
        Means(True, lock, False),
        Means(False, False, filters),
        Means(False, False, False),
    ):
        why = _refusal(means)
        if why is None:
            return means
        reasons.append(why)
    raise ConfigError(f"No program can be run in a sandbox here: {'; '.join(dict.fromkeys(reasons))}.", REMEDY)


def _refusal(means: Means) -> str | None:
    try:
        with Worker(SandboxConfig(seconds=10), means) as worker:
            outcome = worker.run(Program("one = 1", "assert one == 1"))
    except (Refused, LostWorker) as error:
        return str(error)
    return None if outcome.passed else outcome.detail or outcome.state


def means_for(config: SandboxConfig) -> Means:
    """The means of isolation to use. Raises ConfigError if the machine offers less than the config requires."""
    means = means_here()
    if LEVELS.index(means.isolation) < LEVELS.index(config.isolation):
        raise ConfigError(
            f"The sandbox requires isolation {config.isolation}, and this machine offers less: "
            f"{WORDS[means.isolation]}.",
            REMEDY,
        )
    return means


def sandbox_check() -> Check:
    """For `gristmill doctor`: the isolation that a model's programs get here. Takes about 0.1 s."""
    try:
        means = means_here()
    except ConfigError as error:
        return advice("sandbox", False, error.message, error.remedy)
    return advice("sandbox", means.isolation != "limits", WORDS[means.isolation], REMEDY)
