"""The text of tokens as they come is that of all of them, up to the first stop text, however tokens cut it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.tokenizer import load_tokenizer, text_ids, token_text
from tasks.serve.engines.transformers.text import PART, Text, decoded
from tests.models.families import FAMILIES
from tests.tasks.tiny_model import make_tokenizer

CHARACTERS = st.text(st.sampled_from("ab ☃é🦊\n"), max_size=12)


@pytest.fixture(scope="module", params=["ours", "gemma", "mistral 0.3"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "ours":
        return load_tokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    return FAMILIES[request.param].tokenizer()


def pieces(tokenizer: Any, before: str, ids: list[int], stops: list[str]) -> tuple[list[str], str | None]:
    text = Text(tokenizer, text_ids(tokenizer, before), stops)
    found = []
    for id in ids:
        found.append(text.add(id))
        if text.stop is not None:
            break
    return [*found, text.end()], text.stop


@settings(max_examples=200, deadline=None)
@given(before=CHARACTERS, said=CHARACTERS, stops=st.lists(st.text(st.sampled_from("ab ☃"), min_size=1, max_size=3)))
def test_pieces_join_to_the_text_before_a_stop(tokenizer: Any, before: str, said: str, stops: list[str]) -> None:
    ids = text_ids(tokenizer, said, begun=False)
    whole = "".join(pieces(tokenizer, before, ids, [])[0])
    assert (
        whole
        == decoded(tokenizer, [*text_ids(tokenizer, before), *ids])[
            len(decoded(tokenizer, text_ids(tokenizer, before))) :
        ]
    )
    found, stop = pieces(tokenizer, before, ids, stops)
    places = [whole.index(one) for one in stops if one in whole]
    assert "".join(found) == (whole[: min(places)] if places else whole)
    assert (stop is None) == (not places)
    assert not any(PART in piece for piece in found)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_bytes_that_are_no_text_are_shown_as_the_whole_is(tokenizer: Any, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=20))
    assert "".join(pieces(tokenizer, "", ids, [])[0]) == decoded(tokenizer, [*text_ids(tokenizer, ""), *ids])


def test_a_token_by_itself_keeps_its_blank(tokenizer: Any) -> None:
    ids = text_ids(tokenizer, "a b", begun=False)
    assert "".join(token_text(tokenizer, id) for id in ids[1:]).endswith(" b") or len(ids) == 1
