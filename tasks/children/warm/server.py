"""The process that children are forked from: `python -m tasks.children.warm.server SOCKET`.

It is started with the environment of its children, so that the allocator, OpenMP and the libraries read their settings
as they would in a new process. It only imports: it starts no thread, touches no device and sets no seed. A child runs
`python -m MODULE`'s code in the same state as a new process, except for the modules imported already.

A request for a child brings its words, and three descriptors: a socket, its stdout and its stderr. The socket reports
the child's pid, then its exit code and its use of processor and memory. When the stage closes it, the child's process
group is killed. When the server dies, the kernel kills its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from tasks.children.die_with_parent import die_with_parent

REQUEST = 1 << 16  # bytes
DESCRIPTORS = 3  # the child's socket, its stdout and its stderr
TITLE = 1024  # bytes of the server's command line, which a child overwrites with its own
# Libraries that children import sooner or later, by the beginnings of their modules' names. The first match counts
_MODELS = ("torch", "transformers.models.llama.modeling_llama", "accelerate")
_TRAINERS = ("trl.trainer.sft_trainer", "trl.trainer.dpo_trainer")
LIBRARIES: dict[str, tuple[str, ...]] = {
    "tasks.pretrain.": (*_MODELS, "deepspeed"),
    "tasks.posttrain.": (*_MODELS, "deepspeed", "datasets", "peft", *_TRAINERS),
    "tasks.evaluate.score.": (*_MODELS, "lm_eval.tasks"),
    "tasks.evaluate.": _MODELS,
    "tasks.base.": (
        "torch",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.llama.configuration_llama",
    ),
    "tasks.export.": (*_MODELS, "deepspeed", "gguf", "xllamacpp"),
    "tasks.children.": (),
}


class Request(NamedTuple):
    """A child's task, and where it writes."""

    words: list[str]  # the module, then its arguments
    folder: str
    environment: dict[str, str]  # in addition to the server's own
    reports: socket.socket
    output: int
    errors: int


def main() -> None:
    """Serve until the last request. In a child, run its module as `python -m` does."""
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        sys.argv = request.words
        runpy.run_module(request.words[0], run_name="__main__", alter_sys=True)


def serve(channel: socket.socket) -> Request | None:
    """Fork a child for each request. In a child, returns its request. In the server, returns None once `channel` is
    closed and every child has ended."""
    children: dict[int, socket.socket] = {}  # the socket to report to, by pid
    # SIGCHLD wakes the selector by this pair. SIGINT is for the stage, which ends its children itself
    waking, waker = socket.socketpair()
    for end in (waking, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    selector = selectors.DefaultSelector()
    for source in (channel, waking):
        selector.register(source, selectors.EVENT_READ)
    while children or channel in selector.get_map():
        for key, _ in selector.select():
            if key.fileobj is waking:
                waking.recv(REQUEST)
                for pid in _ended(children):
                    reports = children.pop(pid)
                    if reports in selector.get_map():
                        selector.unregister(reports)
                    reports.close()
            elif key.fileobj is not channel:  # a stage never writes to it: it has closed its end
                if key.data in children:  # the child may have ended in the same batch
                    selector.unregister(key.fileobj)
                    _kill(key.data)
            elif (request := _receive(channel)) is None:
                selector.unregister(channel)
            elif pid := _forked(request):
                children[pid] = request.reports
                selector.register(request.reports, selectors.EVENT_READ, pid)
            else:
                selector.close()
                for descriptor in (channel, waking, waker, *children.values()):
                    descriptor.close()
                _become(request)
                return request
    return None


def _receive(channel: socket.socket) -> Request | None:
    """The next request, None at the channel's end."""
    message, descriptors, _, _ = socket.recv_fds(channel, REQUEST, DESCRIPTORS)
    if not message:
        return None
    reports, output, errors = descriptors
    return Request(**json.loads(message), reports=socket.socket(fileno=reports), output=output, errors=errors)


def _forked(request: Request) -> int:
    """Import the child's libraries and fork it. Returns its pid, or 0 in the child."""
    for number in (1, 2):  # warnings of libraries on import go to the child's log
        os.dup2(request.errors, number)
    for word in request.words:
        import_for(word)
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, every page
    server = os.getpid()
    ready, leads = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        os.setsid()
        die_with_parent(server)
        os.close(leads)
        return 0
    os.close(leads)
    os.read(ready, 1)  # until the child leads its group, which the stage may signal once it has the pid
    os.close(ready)
    os.close(request.output)
    os.close(request.errors)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    _report(request.reports, pid=pid)
    return pid


def import_for(module: str) -> None:
    """Import the libraries of a child that runs `module`, if it is one of ours. An import that fails is for the child
    to report."""
    for name in next(((*names, module) for start, names in LIBRARIES.items() if module.startswith(start)), ()):
        with contextlib.suppress(ImportError, OSError, RuntimeError, AttributeError):
            importlib.import_module(name)
    if not hasattr(sys.modules.get(module), "__path__"):
        sys.modules.pop(module, None)  # the child runs it, as __main__


def _ended(children: dict[int, socket.socket]) -> list[int]:
    """The pids of children that have ended. Reports the exit code, processor time and peak memory of each."""
    ended = []
    for pid, reports in children.items():
        ended_pid, status, used = os.wait4(pid, os.WNOHANG)
        if ended_pid:
            seconds, peak = used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss
            _report(reports, code=os.waitstatus_to_exitcode(status), cpu_seconds=seconds, peak=peak)
            ended.append(pid)
    return ended


def _report(reports: socket.socket, **fields: float) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        reports.send(json.dumps(fields).encode())


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _become(request: Request) -> None:
    """Give the child its own streams, folder, environment, signals, random numbers and command line."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(request.output, 1)
    os.dup2(request.errors, 2)
    for descriptor in (request.output, request.errors):
        os.close(descriptor)
    request.reports.close()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    reseed()
    _entitle([sys.executable, "-m", *request.words])


def reseed() -> None:
    """Seed random numbers afresh, as a new process does. Python's own generator does this by itself."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def _entitle(words: list[str]) -> None:
    """Show a command line in place of the server's, by overwriting its memory: arg_start to arg_end of proc(5)."""
    start, end = (int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    title = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, title, len(title))


if __name__ == "__main__":
    main()
