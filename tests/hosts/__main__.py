"""`python -m tests.hosts [DRILL …]`: run the drills of two hosts, and print a table of their outcomes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.hosts.drills import DRILLS, drilled, undisturbed
from tests.hosts.network import why_not

DIGITS = 12
COLUMNS = ("drill", "told after", "resumed from step", "processes", "digest", "weights", "told")


def main() -> int:
    """Returns 1 if weights differ, 3 if hosts can't be created here."""
    if why := why_not():
        print(why)
        return 3
    wanted = [name for name in DRILLS if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    differ = False
    with tempfile.TemporaryDirectory(prefix="gristmill-hosts-") as folder:
        expected = undisturbed(Path(folder))
        print(f"The model of a training that nothing disturbs has the digest {expected[:DIGITS]}.\n", flush=True)
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        for name in wanted:
            row = drilled(name, Path(folder), expected)
            after = "–" if row.noticed is None else f"{row.noticed:.0f} s"
            weights = "the same" if row.same else "DIFFER"
            cells = name, after, row.resumed, row.processes, row.digest[:DIGITS], weights, row.told
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            differ |= not row.same
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
