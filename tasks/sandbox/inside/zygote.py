"""The process from which programs are forked, with Python started and common modules imported once for all of them.

It starts with an empty environment and only a socket, so that no program inherits a secret. It serves one program after
the other. When the socket closes, because its parent ended or was killed, it ends with all its children.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from tasks.sandbox.inside import kernel, root
from tasks.sandbox.inside.program import Job
from tasks.sandbox.inside.settings import Settings, receive, send
from tasks.sandbox.inside.supervise import end_children, map_ids, remove, supervise

OFTEN = (
    "bisect",
    "collections",
    "copy",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "random",
    "re",
    "statistics",
    "string",
    "typing",
)
ALIVE = 500  # milliseconds between checks that the parent is alive
ANSWER = 1 << 16  # bytes


def serve(descriptor: int) -> Job:
    """Serve on a socket until it closes. Returns only in a forked process, with the job for that process."""
    channel = socket.socket(fileno=descriptor)
    message = receive(channel) or sys.exit(1)
    settings = Settings(**{**message, "packages": tuple(message["packages"])})
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the parent may have ignored it
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGCHLD])
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    try:
        privileged = prepare(settings, proc)
    except OSError as error:
        send(channel, {"error": str(error)})
        sys.exit(1)
    send(channel, {"error": ""})
    while (texts := receive(channel)) is not None:
        reading, writing = os.pipe()
        watcher = os.fork()
        if watcher == 0:
            os.close(reading)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            channel.detach()
            os.close(descriptor)
            try:
                if job := supervise(settings, texts, privileged, proc, writing):
                    return job
            except OSError as error:
                os.write(writing, json.dumps({"lost": str(error)}).encode("ascii"))
            os._exit(1)
        os.close(writing)
        result = _result(channel, reading, parent)
        if result is None:
            os.kill(watcher, signal.SIGKILL)
        os.waitpid(watcher, 0)
        end_children(proc)
        os.close(reading)
        if result is None:
            break
        send(channel, result)
    if settings.folder:
        remove(settings.folder)  # the parent, which made it, may have been killed
    sys.exit(0)


def prepare(settings: Settings, proc: int) -> bool:
    """Import common modules, and enter the root of all sandboxes. Returns whether this process is the real root.

    Raises OSError if the kernel refuses.
    """
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    sys.path[:] = [path for path in map(os.path.realpath, (*sys.path, *settings.packages)) if os.path.isdir(path)]
    for name in OFTEN:
        importlib.import_module(name)
    if not settings.namespaces:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        return False
    paths = root.readable(sys.path)
    privileged = False
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.NEW_MOUNTS)
        privileged = user == 0
    except OSError:
        kernel.unshare(kernel.NEW_USER | kernel.NEW_MOUNTS)
        map_ids(proc, (user, user), (group, group))
    root.build(paths)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    return privileged


def _result(channel: socket.socket, reading: int, parent: int) -> Any:
    """The supervisor's answer, or None if the parent has gone meanwhile."""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.register(channel, 0)
    while True:
        for descriptor, _ in poll.poll(ALIVE):
            if descriptor != reading:
                return None
            content = os.read(reading, ANSWER)
            if content:
                return json.loads(content)
            return {"lost": "its supervisor was killed"}
        if os.getppid() != parent:
            return None
