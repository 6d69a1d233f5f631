"""Runs a command whose descendants end with it, and with the process that started it, even by kill -9.

    python -m tasks.serve.engines.group SECONDS COMMAND…

vLLM's processes don't end with their parent: killed by kill -9, its server leaves those that hold the GPU. Here they
share a group, which is ended as soon as the command ends, or as stdin closes, a pipe that the starting process holds.
The command gets `SECONDS` after TERM.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

from tasks.children.die_with_parent import tied_to


def command(grace: float, *words: str) -> list[str]:
    """The command that runs `words` so."""
    return [sys.executable, "-m", "tasks.serve.engines.group", str(grace), *words]


def main() -> None:
    """Run the command, and exit with its code."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # a service's stop may reach each of its processes: stdin decides
    grace, words = float(sys.argv[1]), sys.argv[2:]
    process = subprocess.Popen(tied_to(os.getpid(), words), stdin=subprocess.DEVNULL, start_new_session=True)
    ended = os.pidfd_open(process.pid)
    ready, _, _ = select.select([sys.stdin, ended], [], [])
    try:
        if ended not in ready:
            process.terminate()
            process.wait(grace)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
