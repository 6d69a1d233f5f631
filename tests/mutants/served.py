"""Defects of the server that answers with a release."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LEDGERS = "tests/tasks/serve/access/test_ledgers.py"
GATE = "tests/tasks/serve/access/test_gate.py"

SERVED = (
    Mutant(
        name="audit-keeps-half-a-line",
        about="serve: a line that a full disk refused in the middle stays in the audit log",
        path="tasks/serve/watch/audit.py",
        before="            os.ftruncate(self._file, self._size)  # whole lines only\n",
        after="",
        fails=("tests/tasks/serve/watch/test_audit.py",),
    ),
    Mutant(
        name="dead-engine-revived-by-a-late-token",
        about="serve: a token that was on its way when the engine died makes it ready again",
        path="tasks/serve/watch/health.py",
        before="        elif self._last.ready:  # what was once found dead",
        after="        else:\n            self._last = Readiness(True)  #",
        fails=("tests/tasks/serve/watch/test_health.py",),
    ),
    Mutant(
        name="any-model-has-series",
        about="serve: each model that a client names has series of its own, so it can fill the memory",
        path="tasks/serve/watch/metrics.py",
        before="        label = model if model in self.of_models else OTHER\n",
        after="        label = model\n",
        fails=("tests/tasks/serve/watch/test_metrics.py::test_what_clients_name_adds_no_series",),
    ),
    Mutant(
        name="log-quotes-an-error",
        about="rule 9: the message of an error, which may quote a prompt, reaches the server's log",
        path="tasks/serve/watch/logs.py",
        before="if isinstance(error, GristmillError) else {}\n",
        after='if isinstance(error, GristmillError) else {"said": str(error)}\n',
        fails=("tests/tasks/serve/watch/test_logs.py",),
    ),
    Mutant(
        name="admission-not-atomic",
        about="serve: two processes read a key's counters before one of them writes",
        path="tasks/serve/access/sqlite_ledger.py",
        before='            self._db.execute("BEGIN IMMEDIATE")\n',
        after='            self._db.execute("BEGIN")\n',
        fails=(f"{LEDGERS}::test_processes_together_admit_no_more_than_the_limit_and_a_kill_frees_their_slots",),
    ),
    Mutant(
        name="stream-reserves-nothing",
        about="serve: streams of one key side by side each have the whole budget",
        path="tasks/serve/access/quota.py",
        before="        free = total - usage.spent_tokens - usage.reserved_tokens\n",
        after="        free = total - usage.spent_tokens\n",
        fails=(f"{LEDGERS}::test_streams_side_by_side_never_overrun_a_budget",),
    ),
    Mutant(
        name="lost-answer-booked-twice",
        about="serve: a booking that Redis runs again after its answer was lost counts twice",
        path="tasks/serve/access/redis_ledger.py",
        before="if not redis.call('SET', P..'settled:'..id, '1', 'NX', 'EX', '3600') then return end\n",
        after="redis.call('SET', P..'settled:'..id, '1', 'NX', 'EX', '3600')\n",
        fails=(f"{LEDGERS}::test_streams_side_by_side_never_overrun_a_budget",),
    ),
    Mutant(
        name="client-leaves-its-slot-taken",
        about="serve: a client that leaves while it is admitted keeps its slot and reservation",
        path="tasks/serve/access/gate.py",
        before="            future.add_done_callback(_settle_unused)\n",
        after="",
        fails=(f"{GATE}::test_a_client_that_leaves_while_it_is_admitted_leaves_nothing_reserved",),
    ),
    Mutant(
        name="revoked-key-remembered",
        about="serve: a revoked key is valid wherever it was verified before",
        path="tasks/serve/access/gate.py",
        before='        if state != "active":\n',
        after='        if state not in ("active", "revoked"):\n',
        fails=(f"{GATE}::test_a_key_that_another_process_revokes_is_refused_at_once",),
    ),
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
