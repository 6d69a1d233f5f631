"""Defects of the server that answers with a release."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

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
        before="        if self._last.ready:  # what was once found dead",
        after="        self._last = Readiness(True)\n        if True:  #",
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
)
