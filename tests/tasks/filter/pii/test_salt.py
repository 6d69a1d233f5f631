"""The salt of surrogates is a secret: named in a profile, read where it is used, written nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from flows.commands import profile, store
from profiles.load import load
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.keys import differences
from storage.shards.documents import read_documents
from storage.store import Store
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.pii.salt import SaltSource, read_salt, salt_digest
from tasks.filter.run import filter_shard
from tasks.filter.side_files import Measured
from tasks.stage.display.progress import Observer, Progress
from tasks.stage.history import explain_miss
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.filter.test_filter import GOOD, RULES, questions, write

SECRET = "correct-horse-battery"
OTHER = "staple-of-another-kind"
TEXT = f"{GOOD} Write to jane.doe@corp.com."
CLEAR = [SECRET, {"value": SECRET}, [SECRET], {"env": f"{SECRET} "}, {"env": "SALT", "file": SECRET}]


class Listener(Observer):
    """Keeps all that is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def started(self, stage: str, why: str) -> None:
        """Keep it."""
        self.said.append(why)

    def progressed(self, progress: Progress) -> None:
        """Keep it."""
        self.said.append(progress.note)

    def noted(self, stage: str, message: str) -> None:
        """Keep it."""
        self.said.append(message)


def config(**salt: str) -> FilterConfig:
    return FilterConfig.model_validate({**RULES, "pii": {"action": "surrogate", "salt": salt or None}})


def everything_in(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def made_text(artifact: Artifact) -> str:
    return next(document.text for path in artifact.part("documents").files("*") for document in read_documents(path))


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Artifact, Artifact]:
    return write(tmp_path / "in", [TEXT, f"{TEXT} Now."]), questions(tmp_path / "benchmarks")


def test_a_salt_shapes_surrogates_and_is_written_nowhere(
    tmp_path: Path, inputs: tuple[Artifact, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Store(str(tmp_path / "store"))
    listener = Listener()
    with open_session(Session(opened, runtime_of(workers=1))):
        filter_documents.materialize(config(), inputs)  # measures
    workers = runtime_of(workers=2)  # two processes for two shards
    monkeypatch.setenv("GRISTMILL_TEST_SALT", SECRET)
    with open_session(Session(opened, workers, observer=listener)):
        first, _ = filter_documents.materialize(config(env="GRISTMILL_TEST_SALT"), inputs)
    monkeypatch.setenv("GRISTMILL_TEST_SALT", OTHER)
    with open_session(Session(opened, workers, observer=listener)):
        payload = filter_documents.payload(config(env="GRISTMILL_TEST_SALT"), inputs)
        listener.said.append(explain_miss(opened, payload))
        second, cached = filter_documents.materialize(config(env="GRISTMILL_TEST_SALT"), inputs)
    assert not cached, "another salt under the same name is another key"
    assert made_text(first) != made_text(second)
    assert first.manifest
    changed = [path for path, *_ in differences(first.manifest.payload.model_dump(), payload.model_dump())]
    assert changed == ["inputs.source:pii.salt"]
    compared = CliRunner().invoke(
        store.app, ["diff", first.location, second.location, "--store", str(tmp_path / "store")]
    )
    assert compared.exit_code == 0
    shown = compared.output + json.dumps(listener.said)
    assert "source:pii.salt" in shown
    for secret in (SECRET, OTHER):
        assert secret not in shown
        assert secret.encode() not in everything_in(tmp_path)


def test_a_file_holds_a_salt_as_well_as_a_variable(
    tmp_path: Path, inputs: tuple[Artifact, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRISTMILL_TEST_SALT", SECRET)
    (tmp_path / "salt").write_text(f"{SECRET}\n")
    payloads = [
        filter_documents.payload(chosen, inputs)
        for chosen in (config(env="GRISTMILL_TEST_SALT"), config(file=str(tmp_path / "salt")))
    ]
    assert payloads[0].inputs == payloads[1].inputs
    assert payloads[0].inputs["source:pii.salt"] == salt_digest(SECRET)
    assert len(salt_digest(SECRET)) == 64


def test_without_a_salt_the_key_is_what_it_was() -> None:
    assert FilterConfig().model_dump(mode="json")["pii"]["salt"] == ""
    documents = Artifact(folder=Path(), digest="documents", location="")
    benchmarks = Artifact(folder=Path(), digest="benchmarks", location="")
    payload = filter_documents.payload(FilterConfig(), (documents, benchmarks))
    assert payload.key() == "5d1d27e12ea2bf5828632872293f7c68"
    shown = FilterConfig().model_dump(mode="json")
    assert FilterConfig.model_validate(shown) == FilterConfig(), "what `profile show` prints can be read"


@pytest.mark.parametrize("clear", CLEAR)
def test_a_salt_in_clear_is_refused_and_not_repeated(clear: Any) -> None:
    with pytest.raises(ValidationError, match="name an environment variable") as refused:
        FilterConfig.model_validate({"pii": {"salt": clear}})
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(refused.value.errors(include_context=False))
    with pytest.raises(ConfigError, match=r"filter\.pii\.salt.*\{env: NAME\}") as told:
        load("smoke", [f"filter.pii.salt={json.dumps(clear)}"])
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "can't be read: No such file"), (b"\n", "is empty"), (b"\xff\xfe", "is not UTF-8")]
)
def test_a_salt_that_is_not_there_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "salt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"salt {problem}"):
        read_salt(SaltSource(file=str(file)))


def test_a_variable_that_is_not_set_is_named_before_anything_runs(
    inputs: tuple[Artifact, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRISTMILL_TEST_SALT", raising=False)
    with pytest.raises(ConfigError, match="variable GRISTMILL_TEST_SALT is not set"):
        filter_documents.payload(config(env="GRISTMILL_TEST_SALT"), inputs)
    with pytest.raises(ConfigError, match="variable GRISTMILL_TEST_SALT is not set"):
        filter_documents.check_runtime(config(env="GRISTMILL_TEST_SALT"), Runtime())
    monkeypatch.setenv("GRISTMILL_TEST_SALT", "")
    with pytest.raises(ConfigError, match="variable GRISTMILL_TEST_SALT is empty"):
        filter_documents.payload(config(env="GRISTMILL_TEST_SALT"), inputs)


def test_a_worker_that_reads_another_salt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_TEST_SALT", OTHER)
    shard = Measured(tmp_path / "none.parquet", {}), None
    with pytest.raises(ConfigError, match=r"another pii\.salt than the one in the artifact's key") as refused:
        filter_shard(config(env="GRISTMILL_TEST_SALT"), {"pii.salt": salt_digest(SECRET)}, shard, tmp_path)
    assert OTHER not in str(refused.value)


def test_profile_show_prints_where_the_salt_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_TEST_SALT", SECRET)
    shown = CliRunner().invoke(profile.app, ["show", "smoke", "--set", "filter.pii.salt={env: GRISTMILL_TEST_SALT}"])
    assert "env: GRISTMILL_TEST_SALT" in shown.output
    assert SECRET not in shown.output
