"""Defects of the server of a release."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SERVED = (
    Mutant(
        name="thumbs-turned-round",
        about="serve: a thumb down is kept as praise",
        path="tasks/serve/pages/feedback.py",
        before='"label": rating == 1}',
        after='"label": rating == -1}',
        fails=("tests/tasks/serve/pages/test_feedback.py::test_download_reads_every_vote",),
    ),
    Mutant(
        name="half-a-vote-kept",
        about="serve: half a line that a kill left is joined to the next vote",
        path="tasks/serve/pages/feedback.py",
        before='            before -= len(tail) - (tail.rfind(b"\\n") + 1)\n',
        after="",
        fails=("tests/tasks/serve/pages/test_feedback.py::test_no_half_line_stays_after_a_kill_or_on_a_full_disk",),
    ),
)
