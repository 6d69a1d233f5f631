"""`python -m tests.mutants [NAME …]`: plants each defect in a copy of the checkout, and tells which test noticed it.

python -m tests.mutants                                   all of them
python -m tests.mutants rope-base mask-of-the-future      two of them
python -m tests.mutants --soak                            the longer tests are asked too, whatever the others say
python -m tests.mutants --baseline                        first of all, that the tests pass where nothing is planted
python -m tests.mutants --list                            what there is

Ends with 1 where a defect is noticed by nothing, or can't be planted any more because its text is gone.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.run import (
    MAKE_SOAK,
    MAKE_TEST,
    NOTHING,
    STALE,
    Outcome,
    baseline,
    copied_checkout,
    imported_from,
    outcome_of,
)
from tests.mutants.table import MUTANTS


def main() -> int:
    """The exit status: 1 if a defect is noticed by nothing, or is stale."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the defects; all without")
    parser.add_argument("--soak", action="store_true", help="ask the tests of `make soak` too, in any case")
    parser.add_argument("--baseline", action="store_true", help="first see that the tests pass without a defect")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there too")
    parser.add_argument("--list", action="store_true", help="print the defects and what they break, and plant none")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that tests end with this command, and copies go
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"there is no defect {', '.join(unknown)}: --list tells which there are")
    chosen = [known[name] for name in given.names or known]
    if given.list:
        print("\n".join(f"{mutant.name}: {mutant.about} ({mutant.path})" for mutant in chosen))
        return 0
    return planted(chosen, given)


def planted(chosen: Sequence[Mutant], given: argparse.Namespace) -> int:
    """Plant the defects one by one, a line when each begins and when it ends, then the table."""
    with copied_checkout() as copy:
        if imported_from(copy).resolve() != copy.resolve():
            print("A copy of the checkout would be tested by the code of another one: nothing was planted.")
            return 1
    if given.baseline:
        print("The tests without a defect …", flush=True)
        if said := baseline(chosen, given.soak):
            print(said)
            return 1
    outcomes = []
    for number, mutant in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {mutant.name}: {mutant.about} …", flush=True)
        outcomes.append(outcome := outcome_of(mutant, given.soak))
        print(f"    {outcome.noticed_by}, {outcome.seconds:.0f} s: {outcome.first}", flush=True)
    print(table(outcomes))
    if given.json:
        given.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n", encoding="utf-8")
    return int(any(outcome.noticed_by in (NOTHING, STALE) for outcome in outcomes))


def table(outcomes: Sequence[Outcome]) -> str:
    """Who noticed what, as Markdown, and how many in all."""
    rows = [f"| {one.name} | {one.noticed_by} | {one.seconds:.0f} | {one.first} |" for one in outcomes]
    counted = Counter(one.noticed_by for one in outcomes)
    total = ", ".join(f"{counted[who]} by {who}" for who in (MAKE_TEST, MAKE_SOAK, NOTHING))
    stale = f"; {counted[STALE]} stale" if counted[STALE] else ""
    head = ["| defect | noticed by | seconds | first test |", "|---|---|---:|---|"]
    seconds = sum(one.seconds for one in outcomes)
    return "\n".join([*head, *rows, f"{len(outcomes)} defects in {seconds:.0f} s: noticed {total}{stale}."])


if __name__ == "__main__":
    sys.exit(main())
