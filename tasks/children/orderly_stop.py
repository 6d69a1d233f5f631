"""The child's side of an orderly stop: a training that is asked to end finishes its step and writes a checkpoint first.

The stage asks by a file in the scratch folder, which reaches every rank on every host, whatever the launcher. All ranks
stop after the same step: after every step each shares what it knows, and a step later learns what the others know, so
that nothing waits for the exchange.

SIGTERM may also reach a rank directly: Slurm signals every process of a job, and torchrun passes it on. It is then held
back until the stage, which was signalled too, has asked. If nobody asks, it ends the process as usual. A thread does
so, as a rank that waits in a collective can't run Python.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.children.child import emit

if TYPE_CHECKING:
    from torch import Tensor

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 2.0  # from a SIGTERM until the stage on this host must have asked


class OrderlyStop:
    """Whether the training ends after this step. Every rank must create it at the same place, in its main thread.

    `file` is the stage's request. `grace` are the seconds that the stage gives: with 0 it ends training at once, and
    nothing is done here.
    """

    def __init__(self, file: Path, *, ranks: int, grace: float, reports: bool) -> None:
        self.file, self.ranks, self.enabled = file, ranks, grace > 0
        self.requested = False
        self._exchange: tuple[Tensor, Any] | None = None
        if not self.enabled:
            return
        if ranks > 1:
            import torch

            self._group = torch.distributed.new_group(backend="gloo")
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        # With several hosts the request may come from another host's rank, after a step
        self._patience = PATIENCE_SECONDS if ranks <= here else grace
        self._woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        self._wakes = wakes  # kept open
        # The C handler writes the signal's number to this socket, even while the main thread is in a collective
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the stage
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # `_watch` acts on it
        threading.Thread(target=self._watch, name="orderly-stop", daemon=True).start()
        if reports:
            emit(stoppable=True)

    def agreed(self) -> bool:
        """Whether all ranks stop now. Every rank must ask after every step."""
        if not self.enabled:
            return False
        if self.ranks == 1:
            return self.requested
        import torch

        # The exchange begun after the last step has had a whole step to finish. Its maximum is the same on every rank
        before, self._exchange = self._exchange, None
        if before is not None:
            flag, exchange = before
            exchange.wait()
            if flag.item():
                self.requested = True
                return True
        flag = torch.tensor([int(self.requested)])
        exchange = torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, self._group, async_op=True)
        self._exchange = flag, exchange
        return False

    def close(self) -> None:
        """Call after the last step, to finish the open exchange."""
        if self._exchange is not None:
            self._exchange[1].wait()
            self._exchange = None

    def _watch(self) -> None:
        """Look for the file. End the process if it was signalled and the file does not come."""
        deadline: float | None = None
        while not self.requested:
            if select.select([self._woken], [], [], POLL_SECONDS)[0]:
                signalled = signal.SIGTERM in self._woken.recv(4096)
                deadline = time.monotonic() + self._patience if signalled and deadline is None else deadline
            if self.file.exists():
                self.requested = True
            elif deadline is not None and time.monotonic() > deadline:
                ctypes.CDLL(None).signal(int(signal.SIGTERM), None)  # SIG_DFL: Python lets only the main thread set it
                os.kill(os.getpid(), signal.SIGTERM)
