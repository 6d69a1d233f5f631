"""The process that watches one program: makes its namespaces, starts it, ends it in time, and reports its outcome."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from typing import Any

from tasks.sandbox.inside import kernel, root
from tasks.sandbox.inside.program import Job
from tasks.sandbox.inside.settings import Settings

NOBODY = 65534  # the user and group that a program runs as in its namespace, and outside it too if that was root
ISOLATED = kernel.NEW_USER | kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_UTS
TOKEN = 16  # bytes
REPORT = 1 << 16  # maximum bytes read from the token's pipe, as a program may have written to it too
LOOK = 0.05  # seconds between checks of what the kernel doesn't limit: a folder's size, threads without a namespace
LONG = 1000  # characters of an error
OVER = {"files": ("OSError", "its folder has no space left"), "threads": ("RuntimeError", "it has too many threads")}


def supervise(settings: Settings, texts: list[str], privileged: bool, proc: int, answer: int) -> Job | None:
    """Run the texts in a child process and write the outcome, as JSON, to the descriptor `answer`.

    In the child, returns the job, which its caller begins once its own frames are gone. In the supervisor, never
    returns. `privileged` says that this process is root outside any namespace, `proc` is an open /proc.
    """
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    if settings.namespaces:
        isolate(privileged, proc)
    folder = root.WORK if settings.namespaces else tempfile.mkdtemp(dir=settings.folder)
    token = os.urandom(TOKEN)
    reading, writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        return Job(settings, texts, token, writing, folder)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(writing)
    over, code, usage = _wait(child, started + settings.seconds, settings, folder, proc)
    seconds = time.monotonic() - started
    if not settings.namespaces:
        end_children(proc)
        remove(folder)
    os.set_blocking(reading, False)
    try:
        report = os.read(reading, REPORT)
    except BlockingIOError:
        report = b""
    result = judge(report == token, report, over, code, usage.ru_utime + usage.ru_stime >= settings.seconds)
    os.write(answer, json.dumps({**result, "seconds": seconds}).encode("ascii"))
    os._exit(0)


def isolate(privileged: bool, proc: int) -> None:
    """Enter new namespaces of every relevant kind. Root becomes nobody first, as the kernel doesn't limit root's
    processes."""
    if privileged:
        # a container's root may be refused this, but the kernel limits that user's processes anyway
        with suppress(OSError):
            os.setgroups([])
        with suppress(OSError):
            os.setresgid(NOBODY, NOBODY, NOBODY)
        with suppress(OSError):
            os.setresuid(NOBODY, NOBODY, NOBODY)
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(ISOLATED)
    map_ids(proc, (NOBODY, user), (NOBODY, group))


def map_ids(proc: int, user: tuple[int, int], group: tuple[int, int]) -> None:
    """Map the user and group of this process's new user namespace, each as (inside, outside)."""
    # a process that can't be dumped finds its own files in /proc owned by root, and can't write them
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user[0]} {user[1]} 1"),
        ("gid_map", f"{group[0]} {group[1]} 1"),
    ):
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode("ascii"))
        os.close(descriptor)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)


def _wait(child: int, deadline: float, settings: Settings, folder: str, proc: int) -> tuple[str, int, Any]:
    """Wait for the program, and kill it when it exceeds its time, its folder's size or its threads. Returns the limit
    exceeded, if any, the exit code as in subprocess, and the resources used."""
    over = ""
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended and os.WIFSTOPPED(status):  # only a traced process stops here: it asked to be traced
            os.kill(child, signal.SIGKILL)
            continue
        if ended:
            return over, os.waitstatus_to_exitcode(status), usage
        left = deadline - time.monotonic()
        if left <= 0:
            over = "time"
        elif threads(child, proc) > settings.tasks:
            over = "threads"
        elif not settings.namespaces and not fits(folder, settings.files):
            over = "files"
        if over:
            os.kill(child, signal.SIGKILL)
            left = 1.0
        signal.sigtimedwait([signal.SIGCHLD], max(0.0, min(left, LOOK)))


def judge(passed: bool, report: bytes, over: str, code: int, all_time_used: bool) -> dict[str, str]:
    """A program's state, and the type and text of its error, from the token and how its process ended.

    The program's own report only decides which failure it is, never that it passed.
    """
    if over == "time" or (code in (-signal.SIGKILL, -signal.SIGXCPU) and all_time_used):
        return {"state": "timed out", "error": "", "message": ""}
    if over in OVER:
        return {"state": "failed", "error": OVER[over][0], "message": OVER[over][1]}
    if passed and code == 0:
        return {"state": "passed", "error": "", "message": ""}
    try:
        error, message = (str(one)[:LONG] for one in json.loads(report))
    except (ValueError, TypeError, RecursionError):
        error, message = "", f"ended with exit code {code} before its tests did"
        if code < 0:
            message = f"killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
    out_of_memory = error == "MemoryError" or code == -signal.SIGKILL
    return {"state": "out of memory" if out_of_memory else "failed", "error": error, "message": message}


def threads(process: int, proc: int) -> int:
    """The number of threads of a process, 0 if /proc doesn't say."""
    try:
        status = os.open(f"{process}/status", os.O_RDONLY, dir_fd=proc)
        content = os.read(status, 1 << 14)
        os.close(status)
    except OSError:
        return 0
    return int(content.partition(b"\nThreads:")[2].partition(b"\n")[0] or 0)


def end_children(proc: int) -> None:
    """Kill every child of this process, its own or adopted, until none is left."""
    own = os.getpid()
    while True:
        try:
            listed = os.open(f"{own}/task/{own}/children", os.O_RDONLY, dir_fd=proc)
            children = [int(one) for one in os.read(listed, 1 << 16).split()]
            os.close(listed)
        except OSError:  # a kernel without CONFIG_PROC_CHILDREN: dead children are still reaped
            children = []
        for child in children:
            os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, 0 if children else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if not children:
            return


def fits(folder: str, size: int) -> bool:
    """Whether a folder's files take at most `size` bytes and aren't too many. A subfolder that can't be read, or whose
    path is too long, could hide files and so doesn't fit."""
    total = count = 0
    waiting = [folder]
    while waiting and total <= size and count <= root.INODES:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError as error:
            if error.errno in (errno.EACCES, errno.ENAMETOOLONG):
                return False
            # otherwise the program is just changing it
    return total <= size and count <= root.INODES


def remove(folder: str) -> None:
    """Remove a folder, however deep and whatever its modes. Subfolders are moved up, so that no path grows too long."""
    moved = 0
    os.chmod(folder, 0o700)
    while entries := sorted(os.listdir(folder)):
        for name in entries:
            path = os.path.join(folder, name)
            if os.path.islink(path) or not os.path.isdir(path):
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            for inner in os.listdir(path):
                below = os.path.join(path, inner)
                if os.path.isdir(below) and not os.path.islink(below):
                    os.chmod(below, 0o700)
                while os.path.lexists(target := os.path.join(folder, f"{moved}")):
                    moved += 1
                os.rename(below, target)
            os.rmdir(path)
    shutil.rmtree(folder)
