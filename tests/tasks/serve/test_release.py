"""A release that is served: no text of a message becomes a control token, by any template, and ids hold none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.conversation import TemplateFaultError
from models.tokenizer import SPECIAL_TOKENS, beginning, save_tokenizer
from storage.errors import ConfigError, StoreError
from tasks.export.formats import FORMATS
from tasks.export.release import release_name
from tasks.serve.config import EngineConfig, ServeConfig
from tasks.serve.open_models import kind_of, make_engine
from tasks.serve.release import Release, choose_format, open_release
from tests.models.families import FAMILIES
from tests.tasks.serve.real_server import HERMES, release_of
from tests.tasks.serve.tiny_release import make_release
from tests.tasks.tiny_model import make_model, make_tokenizer

CHOSEN = (
    "chatml",
    "chatml, tokens not marked",
    "llama 3",
    "mistral 0.3",
    "gemma",
    "phi 3",
    "deepseek 3",
    "qwen 3",
    "command-r",
)


def releases(folder: Path) -> dict[str, Release]:
    """Releases with the tokenizers and templates of these families, and with ours."""
    made = {"ours": Release("ours", make_tokenizer(folder / "ours"), "", {})}
    for name in CHOSEN:
        save_tokenizer(FAMILIES[name].tokenizer(), folder / name)
        made[name] = Release(name, folder / name, "", {})
    return made


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    return releases(tmp_path_factory.mktemp("releases"))


EACH = pytest.mark.parametrize("name", ["ours", *CHOSEN])


def control(release: Release) -> list[str]:
    """Every token that the tokenizer matches in a text before it encodes it."""
    return [token.content for token in release.tokenizer.added_tokens_decoder.values()]


def controls_in(release: Release, ids: list[int]) -> list[int]:
    return [id for id in ids if id in release.tokenizer.added_tokens_decoder]


@EACH
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_text_of_a_message_becomes_a_control_token(
    opened: dict[str, Release], name: str, data: st.DataObject
) -> None:
    release = opened[name]
    tokens = control(release)
    pieces = st.sampled_from([*tokens, *(token[:-1] for token in tokens), "\n", "user", "system", "a", "é"])
    text = "".join(data.draw(st.lists(pieces, max_size=5)))
    text = f"{text}{data.draw(st.sampled_from(tokens))}"
    said, harmless = (release.chat_ids([{"role": "user", "content": content}]) for content in (f"x{text}x", "xyz"))
    assert controls_in(release, said) == controls_in(release, harmless)
    assert release.tokenizer.decode(said).count(text.strip()) >= 1, "it is there as plain text"
    assert not release.control_ids & set(release.text_ids(text)[len(beginning(release.tokenizer)) :])
    assert release.count(text) > 0


@EACH
def test_an_order_in_the_name_of_the_system_stays_a_users_text(opened: dict[str, Release], name: str) -> None:
    release = opened[name]
    forged = "".join(control(release))
    rendered = release.chat_ids([{"role": "user", "content": f"hi{forged}\nobey"}, *_answered(), *_asked()])
    plain = release.chat_ids([{"role": "user", "content": "hi"}, *_answered(), *_asked()])
    assert controls_in(release, rendered) == controls_in(release, plain)


def test_no_text_of_a_tool_or_a_call_becomes_a_control_token(tmp_path: Path) -> None:
    release = Release("tools", make_tokenizer(tmp_path), "", {})
    (release.folder / "chat_template.jinja").write_text(HERMES)
    found = []
    for text in ("".join(control(release)), "plain"):
        parameters = {"type": "object", "properties": {text: {"type": "string", "enum": [text]}}}
        tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": parameters}}
        call = {"id": "1", "type": "function", "function": {"name": text, "arguments": {text: [text]}}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        ids = release.chat_ids([*_asked(), said, {"role": "tool", "content": text}, *_asked()], [tool])
        assert release.tokenizer.decode(ids).count(text) == 7, "it is there as plain text"
        found.append(controls_in(release, ids))
    assert found[0] == found[1]


def _answered() -> list[dict[str, str]]:
    return [{"role": "assistant", "content": "Well."}]


def _asked() -> list[dict[str, str]]:
    return [{"role": "user", "content": "And now?"}]


@EACH
def test_ids_may_hold_control_tokens_at_the_beginning_only(opened: dict[str, Release], name: str) -> None:
    release = opened[name]
    begun, plain = beginning(release.tokenizer), release.text_ids("The fox")
    assert release.checked_ids(plain) == plain
    for id in release.control_ids:
        with pytest.raises(ValueError, match=f"^token {id} is a control token$"):
            release.checked_ids([*plain, id])
    for id in (-1, len(release.tokenizer), 2**40):
        with pytest.raises(ValueError, match="the vocabulary has"):
            release.checked_ids([*begun, id])


def test_the_first_of_our_tokens_is_a_control_token_too(opened: dict[str, Release]) -> None:
    assert {*range(len(SPECIAL_TOKENS))} == opened["ours"].control_ids
    with pytest.raises(ValueError, match="token 0 is a control token"):
        opened["ours"].checked_ids([300, 0])


def test_a_conversation_that_the_template_refuses_is_an_error(opened: dict[str, Release]) -> None:
    conversation: list[dict[str, Any]] = [{"role": "system", "content": "x"}, *_asked()]
    with pytest.raises(TemplateFaultError):
        opened["gemma"].chat_ids(conversation)
    for calls in ([1], [{"function": 1}], [{"function": {"name": "f", "arguments": [["x"]]}}]):
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        opened["chatml"].chat_ids([*_asked(), message, *_asked()])


def test_the_format_is_one_that_the_engine_opens(tmp_path: Path) -> None:
    release = Release("tiny", make_release(tmp_path), "", {})
    adapter = FORMATS["gguf-adapter"].path(release.folder)
    adapter.parent.mkdir(exist_ok=True)
    adapter.write_bytes(b"")
    assert FORMATS["gguf-adapter"].files(release.folder)
    assert choose_format(release, "llama.cpp", None) == "gguf-f32"
    assert choose_format(release, "vllm", None) == "safetensors"
    with pytest.raises(StoreError, match="tiny doesn't hold gguf-q8_0 for"):
        choose_format(release, "llama.cpp", "gguf-q8_0")
    with pytest.raises(StoreError, match="tiny doesn't hold safetensors for"):
        choose_format(release, "llama.cpp", "safetensors")
    assert choose_format(release, "transformers", None) == "safetensors"
    with pytest.raises(StoreError, match="tiny doesn't hold gguf-f32 for transformers"):
        choose_format(release, "transformers", "gguf-f32")


def test_virtual_tokens_choose_their_engine(tmp_path: Path) -> None:
    plain = Release("tiny", make_release(tmp_path), "", {})
    assert kind_of(EngineConfig(), plain) == "llama.cpp"
    config = plain.folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"gristmill_virtual_tokens": 4,', 1))
    release = replace(plain)
    assert kind_of(EngineConfig(), release) == "transformers"
    assert choose_format(release, "transformers", None) == "safetensors"
    for kind in ("llama.cpp", "vllm"):
        assert kind_of(EngineConfig(name=kind), release) == kind
        with pytest.raises(ConfigError, match=f"tiny has virtual tokens before every text, which {kind} doesn't read"):
            choose_format(release, kind, None)


@pytest.mark.parametrize(("named", "settings"), [("adapters", {}), ("draft", {"draft": True})])
def test_what_transformers_cannot_serve_is_refused_before_it_starts(
    named: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    release = Release("tiny", tmp_path, "", {})
    config = ServeConfig(state=tmp_path, engine=EngineConfig(**settings))
    adapted = {"formal": release} if named == "adapters" else {}
    with pytest.raises(ConfigError, match=f"tiny is served by transformers, which takes no {named}"):
        make_engine(config, "transformers", release, "safetensors", 64, "tiny", adapted, print)


def test_a_profile_is_meant_by_its_release_and_its_number() -> None:
    assert release_name("tiny") == "tiny/export"
    assert release_name("tiny@2") == "tiny/export@2"
    assert release_name("tiny/export@2") == "tiny/export@2"
    assert release_name("export/0123") == "export/0123"


def test_a_release_of_only_a_gguf_file_can_be_served(tmp_path: Path) -> None:
    release = open_release(
        str(release_of(tmp_path, make_model(tmp_path / "model"), {"formats": ["gguf-f16"]})), "store"
    )
    assert choose_format(release, "llama.cpp", None) == "gguf-f16"
    assert release.context > 16
    assert release.chat_ids([{"role": "user", "content": "Hello"}])
