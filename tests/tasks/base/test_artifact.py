"""An artifact of another profile as a base, and the checks of a base before it is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flows.plan import plan
from flows.session import session_of
from profiles.load import load
from storage.errors import ConfigError
from storage.store import Store
from tasks.base import BaseConfig, base
from tasks.export import ExportConfig, check_formats
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.foreign import make_foreign


def test_an_artifact_is_a_base_and_its_digest_identifies_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    folder = make_foreign(tmp_path / "theirs", "llama")
    with open_session(Session(store, runtime_of(threads=1, device="cpu"), "first")):
        first, _ = base.materialize(BaseConfig(folder=str(folder)), [])
    with open_session(Session(store, runtime_of(threads=1, device="cpu"), "second")):
        config = BaseConfig(artifact="first/base@1")
        second, cached = base.materialize(config, [])
        assert not cached
        assert second.manifest is not None
        assert second.manifest.payload.inputs == {"source:artifact": first.part("model").digest}
        assert second.manifest.uses["base.artifact first/base@1"].location == first.location
        name = Path("model", "model.safetensors")
        assert (second.path / name).read_bytes() == (first.path / name).read_bytes()
        assert base.materialize(BaseConfig(artifact=first.location), [])[0].digest
        with pytest.raises(ConfigError, match="names first/base, which moves"):
            base.materialize(BaseConfig(artifact="first/base"), [])


def test_formats_that_cant_hold_a_base_are_refused_before_its_first_training(tmp_path: Path) -> None:
    folder = make_foreign(tmp_path / "theirs", "gpt_neox")
    check_formats(ExportConfig(formats=["safetensors", "int8"]), folder)
    check_formats(None, folder)
    with pytest.raises(ConfigError, match="gpt_neox isn't among llama, mistral, qwen2"):
        check_formats(ExportConfig(formats=["safetensors", "gguf-q8_0"]), folder)
    sets = [f"runtime.store={tmp_path / 'store'}", "pretrain=null", f"base.folder={folder}"]
    for more, until, asking in (
        ([], None, "sft"),
        (["sft=null"], None, "dpo"),
        ([], "base", ""),
        (["sft=null", "dpo=null"], None, ""),
    ):
        profile = load("smoke", [*sets, *more])
        session = replace(session_of(profile, until), checks={})
        plan(profile, session)
        assert (asking in session.checks) == bool(asking), (more, until)
