"""Programs of a model, run where they can do no harm, and whether they pass their tests.

program.py  a program with its tests, and how it went
config.py   limits, and the isolation that is demanded
run.py      many programs, several at a time
worker.py   one worker: this side of the processes in inside/
levels.py   which isolation this machine offers
inside/     the sandbox's own processes: root, Landlock, seccomp, supervisor, program
"""

from tasks.sandbox.config import Isolation, SandboxConfig
from tasks.sandbox.program import Outcome, Program
from tasks.sandbox.run import Sandbox, run_programs

__all__ = ["Isolation", "Outcome", "Program", "Sandbox", "SandboxConfig", "run_programs"]
