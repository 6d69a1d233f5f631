"""Pages: keys that Prefect takes."""

from __future__ import annotations

import re

import pytest

from tasks.stage.pages import prefect_key


@pytest.mark.parametrize("name", ["progress-signals.My_own.signal", "stage-pii_metadata", "progress-é", "a..b"])
def test_any_name_becomes_a_key_that_prefect_takes(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", prefect_key(name))
    assert prefect_key("stage-toxicity_model") == "stage-toxicity-model"
