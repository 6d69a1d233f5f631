"""A trial of the notification block for failures: one message, as the server would send it.

Otherwise a mistake in its address would show at the first failure, which nobody would hear of. A separate process
imports Prefect: `gristmill ui` itself doesn't.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType

MOST_SECONDS = 10
START_SECONDS = 60  # to import Prefect


def trial(environment: Mapping[str, str], notify: str, address: str) -> str:
    """Send a message to a block, TYPE/NAME. Returns why it failed, without the address, which may be a secret as a
    webhook's is, or empty if it arrived."""
    command = [sys.executable, "-m", "flows.commands.ui.trial", notify, address]
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS + MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {START_SECONDS + MOST_SECONDS} seconds"
    if done.returncode == 0:
        return ""
    lines = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
    return re.sub(r"\w+://[^\s'\"]+", "…", lines[-1])


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An exception hook that prints what the block raised, in one line."""
    lines = (str(error) or str(getattr(error, "log", ""))).strip().splitlines()
    print(": ".join([kind.__name__, *lines[:1]]), flush=True)


def _late(number: int, frame: object) -> None:
    raise TimeoutError(f"no answer within {MOST_SECONDS} seconds")


def main() -> None:
    """`python -m flows.commands.ui.trial TYPE/NAME ADDRESS`: send the message, or end with a line that says why not."""
    from prefect.blocks.core import Block

    sys.excepthook = _end
    notify, address = sys.argv[1:]
    block = Block.load(notify)
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(MOST_SECONDS)
    with block.raise_on_failure():  # type: ignore[union-attr]
        block.notify(f"Gristmill at {address}: failed and crashed runs will be reported here.", "Gristmill")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
