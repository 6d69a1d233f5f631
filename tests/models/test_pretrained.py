"""Third-party models: pickled weights and their own code are never run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.pretrained import load_pretrained
from tests.tasks.planted_code import plant_code


def test_weights_in_a_pickle_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1}))
    plant_code(tmp_path / "pytorch_model.bin", tmp_path / "ran")
    with pytest.raises(OSError, match="safetensors"):
        load_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_code_beside_a_model_is_not_run(tmp_path: Path) -> None:
    described = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()
