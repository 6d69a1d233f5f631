"""Defects of the server: keys that stay valid, limits that don't hold between processes, overrun budgets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LEDGERS = "tests/tasks/serve/access/test_ledgers.py"
GATE = "tests/tasks/serve/access/test_gate.py"

SERVED = (
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
)
