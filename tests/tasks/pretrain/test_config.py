"""The pretraining section of a profile is checked when it is read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tasks.pretrain import PretrainConfig


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"width": 100, "heads": 3}, "100 is not a multiple of 3"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads"),
        ({"family": "gpt2", "kv_heads": 2}, "does not apply to gpt2"),
        ({"sliding_window": 8}, "only to mistral"),
        ({"width": 36, "heads": 12}, "even head size"),
        ({"depht": 3}, "depht"),
    ],
)
def test_a_shape_that_cant_be_built_is_refused_when_it_is_read(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        PretrainConfig.model_validate({"model": {"depth": 4, "context": 64, **wrong}})
