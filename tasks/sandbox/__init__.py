"""Runs a model's programs where they can do no harm, and says whether they pass their tests.

program.py  a program with its tests, and its outcome
config.py   limits, and the isolation required
run.py      many programs, several at a time
worker.py   one worker: the near side of the processes in inside/
levels.py   which isolation this machine offers
inside/     the sandbox's own processes: root, Landlock, seccomp, supervisor, program
"""

from tasks.sandbox.config import Isolation, SandboxConfig
from tasks.sandbox.program import Outcome, Program
from tasks.sandbox.run import Sandbox, run_programs

__all__ = ["Isolation", "Outcome", "Program", "Sandbox", "SandboxConfig", "run_programs"]
