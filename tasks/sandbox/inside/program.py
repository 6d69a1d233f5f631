"""The process that runs one program and then its tests.

That the tests passed is told by a token, written to a pipe when both have run to their end. While they run, the token,
the tests and the pipe's number are arguments of calls that are still to be made: no frame has them, or what leads to
them, as a local, and the collector knows of none of it. A program that leaves early, with whatever exit code, does not
get to the token. One that searches its own memory could: what runs in a process can't be hidden from it entirely.
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
    """One program, to be run by the process that has it."""

    def __init__(self, settings: Settings, texts: list[str], token: bytes, report: int, folder: str) -> None:
        self.settings, self.texts, self.token, self.report, self.folder = settings, texts, token, report, folder

    def begin(self) -> None:
        """Shut this process in, run the texts one after the other in one namespace, write the token. Never returns."""
        with _Telling(self.report):
            shut_in(self.settings, self.folder, self.report)
            # One expression, and a method of one argument, which is passed without a tuple: no local leads to the calls
            [].extend(self._steps())

    def _steps(self) -> Iterable[Any]:
        """Makes the calls as it is read. Nothing of it is left here."""
        steps = hidden(map(operator.call, collections.deque(self._calls())))
        del self.texts, self.token, self.report
        return steps

    def _calls(self) -> tuple[functools.partial[Any], ...]:
        space: dict[str, Any] = {}  # as `exec` has it: __name__ is that of the builtins, no "__main__"
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
    """The same, with all through which it leads to its calls unknown to the collector: `gc.get_objects` lists none of
    it, and `gc.get_referrers` comes from nothing to it. Of these types alone, whose ends allow that."""
    waiting: list[Any] = [steps]
    while waiting:
        one = waiting.pop()
        if isinstance(one, CodeType):  # the collector knows its constants, and not whose they are
            waiting += one.co_consts, one.co_names
        elif isinstance(one, HIDDEN) and gc.is_tracked(one):
            waiting += gc.get_referents(one)
            ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(one))
    return steps


def _compiled(tests: str, program: CodeType) -> CodeType:
    """Tests compiled apart from their program, which thus can't swallow them, but with its `from __future__`."""
    code: CodeType = compile(tests, "<tests>", "exec", flags=program.co_flags & FUTURE, dont_inherit=True)
    return code


class _Telling:
    """Writes what a program raises, and ends its process. A context, because that gets every kind of exception."""

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
    """All that must happen before the first line of a program, in an order in which each step is still allowed."""
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
    """The kernel's own limits on a process. Threads and processes are counted by user, so only where this user is one
    of a namespace of its own."""
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
