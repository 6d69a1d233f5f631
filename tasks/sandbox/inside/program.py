"""The process that runs one program and then its tests.

Passing is proved by a token, which is written to a pipe once both have run to their end. While they run, the token, the
tests and the pipe's number exist only as arguments of pending calls: no frame has them, or anything that leads to them,
as a local, and the garbage collector doesn't track them. A program that exits early, with whatever exit code, never
gets to the token. One that searches its own memory could, as nothing in a process can be hidden from it entirely.
"""

from __future__ import annotations
import __future__

import collections
import ctypes
import functools
import gc
import json
import operator
import os
import resource
import signal
import sys
from collections.abc import Iterable
from types import CodeType, TracebackType
from typing import Any

from tasks.sandbox.inside import kernel, landlock, root, seccomp
from tasks.sandbox.inside.settings import Settings

FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
HIDDEN: tuple[type, ...] = (
    map,
    tuple,
    frozenset,
    collections.deque,
    type(iter(collections.deque())),
    functools.partial,
)
LONGEST = 1000  # characters of an error's message
ENVIRONMENT = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Job:
    """One program, for the current process to run."""

    def __init__(self, settings: Settings, texts: list[str], token: bytes, report: int, folder: str) -> None:
        self.settings, self.texts, self.token, self.report, self.folder = settings, texts, token, report, folder

    def begin(self) -> None:
        """Confine this process, run the texts one after the other in one namespace, write the token. Never returns."""
        with _Reporting(self.report):
            shut_in(self.settings, self.folder, self.report)
            # One expression, and a method of one argument, passed without a tuple: so no local leads to the calls
            [].extend(self._steps())

    def _steps(self) -> Iterable[Any]:
        """An iterator that makes each call as it is read. The job keeps no reference to them."""
        steps = hidden(map(operator.call, collections.deque(self._calls())))
        del self.texts, self.token, self.report
        return steps

    def _calls(self) -> tuple[functools.partial[Any], ...]:
        space: dict[str, Any] = {}  # as plain `exec`: __name__ is then "builtins", not "__main__"
        program, *tests = self.texts
        code = compile(program, "<program>", "exec", dont_inherit=True)
        return (
            functools.partial(exec, code, space),
            # a tracing function could jump over the tests
            functools.partial(sys.settrace, None),
            functools.partial(sys.setprofile, None),
            *(functools.partial(exec, _compiled(text, code), space) for text in tests),
            functools.partial(os.write, self.report, self.token),
            functools.partial(os._exit, 0),
        )


def hidden(steps: Iterable[Any]) -> Iterable[Any]:
    """The same object, untracked by the garbage collector along with everything between it and its calls:
    `gc.get_objects` doesn't list them, and `gc.get_referrers` doesn't lead to them. Only objects of the types in HIDDEN
    are untracked, since their deallocators allow it."""
    waiting: list[Any] = [steps]
    while waiting:
        one = waiting.pop()
        if isinstance(one, CodeType):  # never tracked itself, but its constants are
            waiting += one.co_consts, one.co_names
        elif isinstance(one, HIDDEN) and gc.is_tracked(one):
            waiting += gc.get_referents(one)
            ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(one))
    return steps


def _compiled(tests: str, program: CodeType) -> CodeType:
    """Tests compiled apart from their program, so that it can't swallow them, but with its `from __future__`."""
    code: CodeType = compile(tests, "<tests>", "exec", flags=program.co_flags & FUTURE, dont_inherit=True)
    return code


class _Reporting:
    """Reports what a program raises, and ends its process. A context manager, as that sees every exception."""

    def __init__(self, report: int) -> None:
        self._write = functools.partial(os.write, report)
        self._exit = os._exit

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            text = str(error)[:LONGEST]
            name = getattr(kind, "__name__", "")[:LONGEST]
            self._write(json.dumps([name, text]).encode("ascii"))
        finally:
            self._exit(1)


def shut_in(settings: Settings, folder: str, report: int) -> None:
    """Confine this process before the first line of a program, in an order that still allows each next step."""
    os.setsid()  # a signal to one's own process group must not reach the supervisor
    if settings.namespaces:
        root.mount_work(settings.files)
    os.chdir(folder)
    os.closerange(3, report)
    os.closerange(report + 1, 1024)
    os.environ.clear()
    os.environ.update(ENVIRONMENT, HOME=folder, TMPDIR=folder)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    set_limits(settings)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    paths = ["/"] if settings.namespaces else root.readable(sys.path)
    if settings.landlock:
        landlock.restrict(paths, [folder, *(f"/dev/{name}" for name in root.DEVICES)])
    for name in [one for one in sys.modules if one.partition(".")[0] == "tasks"]:
        del sys.modules[name]
    if settings.seccomp:
        seccomp.restrict(os.getpid(), protected=settings.namespaces)


def set_limits(settings: Settings) -> None:
    """Set the kernel's limits on this process. The kernel counts threads and processes per user, so their limit is set
    only if the user is one of the sandbox's own namespace."""
    whole = int(settings.seconds) + 1
    limits = {
        resource.RLIMIT_CPU: (whole, whole + 1),
        resource.RLIMIT_AS: (settings.memory, settings.memory),
        resource.RLIMIT_FSIZE: (settings.files, settings.files),
        resource.RLIMIT_NOFILE: (settings.open_files, settings.open_files),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MEMLOCK: (0, 0),
    }
    if settings.namespaces:
        limits[resource.RLIMIT_NPROC] = (settings.tasks, settings.tasks)
    for which, (soft, hard) in limits.items():
        highest = resource.getrlimit(which)[1]
        if highest != resource.RLIM_INFINITY:
            soft, hard = min(soft, highest), min(hard, highest)
        resource.setrlimit(which, (soft, hard))
