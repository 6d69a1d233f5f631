"""The report that goes out with a release: the same for each copy of it, without texts of documents or local paths."""

from __future__ import annotations

from flows.report.report import report_of
from flows.report.run_page import page_of
from storage.store import Store
from tasks.checks.extras import lacking
from tasks.export.release_folder import REPORT, REPORT_PAGE


def release_report(store: Store, ref: str) -> dict[str, bytes]:
    """The report of a release by file: its numbers, and the page if the packages that draw it are installed."""
    report = report_of(store, ref, release=True)
    files = {REPORT: report.model_dump_json(indent=1).encode() + b"\n"}
    if not lacking("report"):
        files[REPORT_PAGE] = page_of(report).render().encode()
    return files
