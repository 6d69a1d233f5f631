"""Defects of the guards: text that leaves the server too early, or that another answer sees."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STREAM = "tests/tasks/serve/guards/test_stream.py"
PLANTED = f"{STREAM}::test_what_is_planted_does_not_leave_at_any_chunk_size"

GUARDED = (
    Mutant(
        name="guard-lets-the-last-word-go",
        about="guards: a word is done before the next step shows that it begins a spelled address",
        path="tasks/serve/guards/personal.py",
        before="    return max(waits, size - spelled.start()) if spelled is not None else waits\n",
        after="    return waits\n",
        fails=(PLANTED,),
    ),
    Mutant(
        name="guard-does-not-wait-behind-a-number",
        about="guards: a number is judged before its next groups are there",
        path="tasks/serve/guards/personal.py",
        before="BEHIND_NUMBER, BEHIND_IBAN, BEHIND_SPELLED, BEHIND_WORD = 48, 56, 80, 4\n",
        after="BEHIND_NUMBER, BEHIND_IBAN, BEHIND_SPELLED, BEHIND_WORD = 1, 1, 80, 4\n",
        fails=(PLANTED,),
    ),
    Mutant(
        name="guard-forgets-the-context",
        about="guards: a run is judged without the text before it",
        path="tasks/serve/guards/personal.py",
        before="        first = max(start - CONTEXT, base)\n",
        after="        first = start\n",
        fails=(PLANTED,),
    ),
    Mutant(
        name="guard-steps-by-chunk",
        about="guards: a step ends where a chunk ends",
        path="tasks/serve/guards/stream.py",
        before="        self._part = part[at:]\n        if self._sent",
        after='        self._advance(part[at:], final=False)\n        self._part = ""\n        if self._sent',
        fails=(PLANTED,),
    ),
    Mutant(
        name="guard-sends-after-a-refusal",
        about="guards: an answer goes on behind a refused finding",
        path="tasks/serve/guards/stream.py",
        before='        if not text or self.refused is not None:\n            return ""\n',
        after='        if not text:\n            return ""\n',
        fails=(f"{STREAM}::test_nothing_follows_a_refused_finding",),
    ),
    Mutant(
        name="guard-of-all-answers",
        about="guards: all answers have one state",
        path="tasks/serve/guards/policy.py",
        before="        return OutputGuard(self._output)\n",
        after="        self._one = vars(self).get('_one') or OutputGuard(self._output)\n        return self._one\n",
        fails=(f"{STREAM}::test_two_answers_at_once_do_not_see_each_other", PLANTED),
    ),
    Mutant(
        name="guard-holds-a-run-back-for-ever",
        about="guards: a run without an end is never judged",
        path="tasks/serve/guards/personal.py",
        before="CUT = 512  #",
        after="CUT = 512_000  #",
        fails=("tests/tasks/serve/guards/test_hostile.py::test_text_without_end_is_not_held_back_without_end",),
    ),
)
