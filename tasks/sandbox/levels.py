"""Which isolation this machine offers. Each is tried with a program, because a kernel that has it may refuse it."""

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
    "namespaces": "programs run in namespaces of their own, without network, other processes or files",
    "filters": "programs run behind Landlock and seccomp: no network, no other processes, no files but their own",
    "limits": "only limits of time and memory",
}
REMEDY = (
    "Use a Linux of 2021 or later (5.13), with Landlock among its security modules (the file /sys/kernel/security/lsm "
    "lists them), on x86_64 or aarch64; in a container, allow its system calls."
)


def check_linux() -> None:
    """Raises ConfigError on another system than Linux."""
    if sys.platform != "linux":
        raise ConfigError(
            f"Programs of a model are run in a sandbox of Linux, and this system is {sys.platform}.",
            "Run this stage on Linux, or leave out what runs programs: humaneval and mbpp.",
        )


@functools.cache
def means_here() -> Means:
    """The best means of isolation that work on this machine, each level tried once. Raises ConfigError elsewhere than
    on Linux, and where not even a plain process can be started."""
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
    """The means of isolation to be used. Raises ConfigError where the machine offers less than is demanded."""
    means = means_here()
    if LEVELS.index(means.isolation) < LEVELS.index(config.isolation):
        raise ConfigError(
            f"isolation is {config.isolation}, and this machine offers less: {WORDS[means.isolation]}.", REMEDY
        )
    return means


def sandbox_check() -> Check:
    """For `gristmill doctor`: which isolation programs of a model get here. About a tenth of a second."""
    try:
        means = means_here()
    except ConfigError as error:
        return advice("sandbox", False, error.message, error.remedy)
    return advice("sandbox", means.isolation != "limits", WORDS[means.isolation], REMEDY)
