"""Identity: one canonical form per value, and cache misses that can be explained."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import ConfigError
from storage.keys import KeyPayload, canonical_json, differences

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def payload(**config: object) -> KeyPayload:
    return KeyPayload(stage="demo", version=1, config=config, inputs={"documents": "abc"})


@given(st.dictionaries(st.text(min_size=1), JSON, max_size=6))
def test_the_order_of_keys_changes_nothing(config: dict[str, object]) -> None:
    backwards = dict(reversed(list(config.items())))
    one, two = (KeyPayload(stage="s", version=1, config=c, inputs={}) for c in (config, backwards))
    assert one.key() == two.key()
    assert canonical_json(config) == canonical_json(backwards)


@pytest.mark.parametrize(
    "changed",
    [
        KeyPayload(stage="demo", version=2, config={"a": 1}, inputs={"documents": "abc"}),
        KeyPayload(stage="other", version=1, config={"a": 1}, inputs={"documents": "abc"}),
        KeyPayload(stage="demo", version=1, config={"a": 1.5}, inputs={"documents": "abc"}),
        KeyPayload(stage="demo", version=1, config={"a": 1}, inputs={"documents": "abd"}),
    ],
)
def test_every_part_of_the_payload_bears_identity(changed: KeyPayload) -> None:
    assert changed.key() != payload(a=1).key()


@pytest.mark.parametrize("value", [{1, 2}, math.nan, math.inf, object()])
def test_what_has_no_stable_spelling_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="no stable identity"):
        canonical_json({"a": value})


def test_differences_name_the_dotted_field_and_both_values() -> None:
    old = {"config": {"toxicity": {"max_score": 0.8}, "same": 1}, "version": 1}
    new = {"config": {"toxicity": {"max_score": 0.5}, "same": 1, "added": True}, "version": 1}
    assert differences(old, new) == [("config.added", None, True), ("config.toxicity.max_score", 0.8, 0.5)]


def test_differences_of_lists_of_groups_name_the_group() -> None:
    old = {"sources": [{"name": "a", "limit": 1}, {"name": "b"}], "names": ["a"]}
    new = {"sources": [{"name": "a", "limit": 2}, {"name": "b"}], "names": ["a", "b"]}
    assert differences(old, new) == [("names", ["a"], ["a", "b"]), ("sources.0.limit", 1, 2)]
    new["sources"] = [{"name": "a", "limit": 1}]
    assert differences(old, new)[1] == ("sources", old["sources"], new["sources"])
