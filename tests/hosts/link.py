"""`python -m tests.hosts.link FOLDER RANK`: one of two processes that watch the link between their hosts, with
shorter intervals, until a file `end` is in the folder."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tasks.training.recovery import dead_link
from tasks.training.recovery.dead_link import Door, Links
from tasks.training.recovery.lost_host import training_addresses

RANKS = 2
SECONDS = 4


def main() -> None:
    """Exchange addresses by files, and watch."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    dead_link.IDLE_SECONDS, dead_link.PROBE_SECONDS, dead_link.PROBES = 1, 1, SECONDS - 1
    links = Links(training_addresses())
    addresses, port, key = links.door
    part = folder / f"{rank}.part"
    part.write_text(json.dumps([addresses, port, key.hex()]))
    part.rename(folder / f"door{rank}")
    files = [folder / f"door{number}" for number in range(RANKS)]
    while not all(file.exists() for file in files):
        time.sleep(0.05)
    told = [json.loads(file.read_text()) for file in files]
    doors = [Door(tuple(addresses), port, bytes.fromhex(key)) for addresses, port, key in told]
    with links.watched(doors, ["first", "second"], rank):
        while not (folder / "end").exists():
            time.sleep(0.05)


if __name__ == "__main__":
    main()
