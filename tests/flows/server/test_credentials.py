"""A profile with credentials is refused, in a sentence that does not repeat them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.commands.test_cli import gristmill

SECRET = "hunter2+battery/staple"
STORE = f"s3://key:{SECRET}@bucket/store"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["run", "smoke", f"--store={STORE}"], "runtime.store"),
        (["run", "smoke", f"--set=runtime.store={STORE}"], "runtime.store"),
        (["plan", "smoke", f"--set=runtime.store=[{STORE}]"], "runtime.store.0"),
        (["plan", "smoke", f"--set=runtime.store={{url: {STORE}}}"], "runtime.store.url"),
        (["plan", "smoke", f"--set={STORE}"], "lacks a value"),
        (["plan", "smoke", f"--set={STORE}=1"], "a key holds"),
        (["run", "smoke", f"--set=runtime=https://host/?token={SECRET}"], "runtime"),
        (
            [
                "why",
                "download",
                "smoke",
                f"--set=download.sources=[{{kind: files, name: a, paths: ['https://me:{SECRET}@host/a.jsonl']}}]",
            ],
            "download.sources.0.paths.0",
        ),
        (["profile", "show", "smoke", f"--set=download.sources={{nonsense: '{STORE}'}}"], "download.sources.nonsense"),
        (["doctor", f"--store={STORE}"], "runtime.store"),
        (["explain", "abcd", f"--store={STORE}"], "s3://***@bucket/store"),
        (["store", "ls", f"--store={STORE}"], "s3://***@bucket/store"),
        (["store", "gc", f"--store={STORE}"], "s3://***@bucket/store"),
        (["chat", f"--store={STORE}"], "s3://***@bucket/store"),
        (["run", f"https://host/mine.yaml?token={SECRET}"], "token=***"),
    ],
)
def test_credentials_are_refused_and_never_repeated(arguments: list[str], named: str) -> None:
    done = gristmill(*arguments)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert named in said
    for part in (SECRET, "hunter2", "staple"):
        assert part not in said
    if "password or a token" in said:
        assert "AWS_SECRET_ACCESS_KEY" in said
        assert "FSSPEC_FTP_PASSWORD" in said


def test_those_in_a_profiles_file_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: smoke\nruntime:\n  store: {STORE}\n")
    done = gristmill("run", str(path))
    assert done.returncode == 1
    assert "runtime.store holds a password or a token" in done.stderr
    assert SECRET not in done.stderr
