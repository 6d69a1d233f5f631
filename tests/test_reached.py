"""What a change can reach, so that `make soak CHANGED=REV` runs no more, and no less."""

from __future__ import annotations

from pathlib import Path

from tests.reached import reached


def names(*changed: str) -> set[str]:
    return {file.as_posix() for file in reached([Path(one) for one in changed])}


def test_a_change_reaches_what_imports_it_or_names_it_and_what_reads_files_of_its_folder() -> None:
    kto = names("tasks/posttrain/methods/kto.py")
    assert {"tests/tasks/posttrain/test_losses.py", "tests/pipeline/test_pipeline.py"} <= kto
    assert "tests/tasks/dedup/test_dedup.py" not in kto
    guard = names("flows/guard/middleware.py")  # run as `python -m flows.guard`
    assert "tests/flows/guard/test_routes.py" in guard
    assert "tests/tasks/export/test_gguf.py" not in guard
    assert "tests/docs/test_pages.py" in names("docs/filter.md")
    assert "tests/profiles/test_profiles.py" in names("profiles/tiny.yaml")
    assert names("pyproject.toml") > kto | guard
