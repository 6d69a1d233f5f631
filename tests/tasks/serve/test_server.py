"""Settings that contradict each other end the start, before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError
from tasks.serve.config import ServeConfig
from tasks.serve.server import check

TINY: dict[str, Any] = {"release": "tiny/export", "name": "tiny"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"models": []}, "No model is named"),
        ({"models": [TINY, TINY]}, "Two models have the name tiny"),
        ({"models": [{**TINY, "also": "tiny/export@2"}]}, "`also` and `share` need each other"),
        ({"models": [{**TINY, "share": 0.5}]}, "`also` and `share` need each other"),
        ({"limits": {"models": ["tiny", "tinny"]}}, "limits.models allows tinny, which is not served"),
        ({"tls_key": "key.pem"}, "TLS needs both"),
        ({"tls_key": "key.pem", "tls_certificate": "gone.pem"}, "gone.pem with key.pem is not usable"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        check(ServeConfig.model_validate({"models": [TINY], **settings}))


def test_an_adapter_is_a_name_that_limits_may_allow() -> None:
    model = {**TINY, "adapters": {"polite": "polite/export"}}
    check(ServeConfig.model_validate({"models": [model], "limits": {"models": ["polite"]}}))
