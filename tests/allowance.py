"""A plugin of the tests: prints the dearest files beside their allowances, so that `make test` stays ten minutes.

What a file may take stands in allowances.toml. A file that takes more fails nothing, for the same tests take twice as
long on a busy machine. It is told, so that whoever adds to it takes away.
"""

from __future__ import annotations

import resource
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("allowances.toml")
SHOWN = 10
_ALLOWED = tomllib.loads(FILE.read_text())
_SECONDS: defaultdict[str, float] = defaultdict(float)  # by file


def of(name: str) -> float:
    """The seconds that a file, or that of a test, may take."""
    return float(_ALLOWED["files"].get(name.partition("::")[0], _ALLOWED["each"]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Of a test, its set-up or its tear-down."""
    _SECONDS[report.nodeid.partition("::")[0]] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The dearest files, and what all took: where several processes ran tests, more seconds than went by."""
    if not _SECONDS:
        return
    terminalreporter.section(f"seconds by file, and what {FILE.name} allows")
    for file, seconds in sorted(_SECONDS.items(), key=lambda each: -each[1])[:SHOWN]:
        over = " over" if seconds > of(file) and not config.getoption("markexpr").startswith("soak") else ""
        terminalreporter.line(f"{seconds:7.1f} {of(file):7g}{over:5} {file}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in used)
    terminalreporter.line(f"{sum(_SECONDS.values()):7.0f}              all files; {cpu:,.0f} CPU seconds")
