"""One store for all tests of a report."""

from __future__ import annotations

import pytest

from flows.report.report import Report, report_of
from tests.flows.report.made import Made, whole_store


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A store that no test may change."""
    return whole_store(tmp_path_factory.mktemp("report") / "store")


@pytest.fixture(scope="session")
def report(made: Made) -> Report:
    """The report of its release."""
    return report_of(made.store, "tiny")
