"""What each function refuses: with a typed error that names the thing, before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gristmill as gm
from storage.errors import BadDocument, ConfigError, DamagedArtifact, SourceError, StoreError

TEXTS = ["A river is a body of water.", "A mill grinds grain."]


class Table:
    columns = ("text",)


Bad = tuple[Callable[[Path], object], type[gm.GristmillError], str]
DEDUP: dict[str, Bad] = {
    "empty": (lambda at: gm.dedup([]), SourceError, "The list of texts is empty."),
    "none": (lambda at: gm.dedup(None), ConfigError, "of type NoneType"),  # type: ignore[arg-type]
    "number": (lambda at: gm.dedup(["a", "b", 3]), BadDocument, "Text 2 is of type int"),
    "none within": (lambda at: gm.dedup([*TEXTS, None]), BadDocument, "Text 2 is of type NoneType"),
    "bytes": (lambda at: gm.dedup([b"a"]), BadDocument, "Text 0 is of type bytes"),
    "surrogate": (lambda at: gm.dedup(["a", "b\ud800"]), BadDocument, "Text 1 has a lone surrogate at character 1"),
    "no key": (lambda at: gm.dedup([{"content": "a"}]), BadDocument, "Text 0 lacks the key `text`"),
    "table": (lambda at: gm.dedup(Table()), ConfigError, "Table is a table"),  # type: ignore[arg-type]
    "mapping": (lambda at: gm.dedup({"text": "a"}), ConfigError, "of type dict"),
    "no path": (lambda at: gm.dedup(at / "nowhere"), SourceError, "is neither a file nor a folder"),
    "no file": (lambda at: gm.dedup(at / "full"), SourceError, "contains no readable file"),
    "threshold": (lambda at: gm.dedup(TEXTS, threshold=1.5), ConfigError, "dedup.threshold = 1.5"),
    "not a number": (lambda at: gm.dedup(TEXTS, threshold=True), ConfigError, "dedup.threshold is true or false"),
    "key": (lambda at: gm.dedup(TEXTS, config={"treshold": 1}), ConfigError, "did you mean dedup.threshold"),
    "twice": (lambda at: gm.dedup(TEXTS, threshold=1, config={"threshold": 0.5}), ConfigError, "given twice"),
    "spans": (lambda at: gm.dedup(TEXTS, config={"spans": {}}), ConfigError, "dedup.spans is not for a list"),
    "config": (lambda at: gm.dedup(TEXTS, config=["a"]), ConfigError, "config is of type list"),  # type: ignore[arg-type]
}
FILTER: dict[str, Bad] = {
    "no target": (lambda at: gm.filter(TEXTS, None), ConfigError, "target is None"),  # type: ignore[arg-type]
    "surrogate in target": (lambda at: gm.filter(TEXTS, "k\ud800"), ConfigError, "target is 'k"),
    "empty": (lambda at: gm.filter([], at / "new"), SourceError, "The list of texts is empty."),
    "preset": (
        lambda at: gm.filter(TEXTS, at / "new", preset="finweb"),
        ConfigError,
        "choose one of web, clean, gopher",
    ),
    "preset type": (lambda at: gm.filter(TEXTS, at / "new", preset=3), ConfigError, "filter.preset"),  # type: ignore[arg-type]
    "full": (lambda at: gm.filter(TEXTS, at / "full"), ConfigError, "is not an empty folder"),
    "a file": (lambda at: gm.filter(TEXTS, at / "full" / "file.bin"), ConfigError, "is not an empty folder"),
    "within": (lambda at: gm.filter(at, at / "new"), ConfigError, "which is read"),
    "no path": (lambda at: gm.filter(at / "nowhere", at / "new"), SourceError, "is neither a file nor a folder"),
    "no text": (lambda at: gm.filter([1], at / "new"), BadDocument, "Text 0 is of type int"),
    "key": (lambda at: gm.filter(TEXTS, at / "new", config={"langage": {}}), ConfigError, "unknown key filter.langage"),
    "bounds": (
        lambda at: gm.filter(TEXTS, at / "new", config={"gopher_quality": {"min_words": 9, "max_words": 2}}),
        ConfigError,
        "no document can pass",
    ),
    "signal": (
        lambda at: gm.filter(TEXTS, at / "new", config={"signals": {"s": {"function": "no.such:thing"}}}),
        ConfigError,
        "filter.signals",
    ),
}
TOKENIZER: dict[str, Bad] = {
    "not a path": (lambda at: gm.load_tokenizer(None), ConfigError, "path is None"),  # type: ignore[arg-type]
    "empty": (lambda at: gm.train_tokenizer([]), SourceError, "The list of texts is empty."),
    "too small": (lambda at: gm.train_tokenizer(TEXTS, vocab_size=10), ConfigError, "vocab_size is 10"),
    "negative": (lambda at: gm.train_tokenizer(TEXTS, vocab_size=-1), ConfigError, "tokenizer.vocab_size = -1"),
    "type": (lambda at: gm.train_tokenizer(TEXTS, vocab_size="many"), ConfigError, "vocab_size"),  # type: ignore[arg-type]
    "pattern": (lambda at: gm.train_tokenizer(TEXTS, pattern="gpt9"), ConfigError, "tokenizer.pattern"),
    "keep": (lambda at: gm.train_tokenizer(TEXTS, config={"keep": "a/b@1"}), ConfigError, "tokenizer.keep"),
    "no text": (lambda at: gm.train_tokenizer([None]), BadDocument, "Text 0 is of type NoneType"),
    "no path": (lambda at: gm.train_tokenizer(at / "nowhere"), SourceError, "is neither a file nor a folder"),
    "no tokenizer": (lambda at: gm.load_tokenizer(at), SourceError, "lacks a tokenizer.json"),
    "damaged": (lambda at: gm.load_tokenizer(at / "damaged"), DamagedArtifact, "can't be loaded"),
}
PLAN: dict[str, Bad] = {
    "to": (lambda at: gm.plan("smoke", to=5), ConfigError, "to is 5"),  # type: ignore[arg-type]
    "refresh": (lambda at: gm.plan("smoke", refresh="downlaod"), ConfigError, "Unknown stage downlaod"),
    "surrogate": (lambda at: gm.plan({"extends": "smoke", "name": "a\ud800"}), ConfigError, "can't be written as YAML"),
    "named": (
        lambda at: gm.plan({"extends": "smoke", "dedup": {"a": 1}}),
        ConfigError,
        "The profile: unknown key dedup.a",
    ),
    "override": (
        lambda at: gm.plan("smoke", {"pretrain.steps.a": 1}),
        ConfigError,
        '{"pretrain.steps.a": 1}: pretrain.steps is 30',
    ),
    "profile": (lambda at: gm.plan("tinny"), ConfigError, "Profile tinny does not exist"),
    "profile type": (lambda at: gm.plan(3), ConfigError, "A profile can't be of type int"),  # type: ignore[arg-type]
    "mapping": (lambda at: gm.plan({"extends": "smoke", "tokeniser": {}}), ConfigError, "unknown key tokeniser"),
    "not YAML": (lambda at: gm.plan({"extends": "smoke", "name": {1, 2}}), ConfigError, "can't be written as YAML"),
    "key": (lambda at: gm.plan("smoke", {"pretrain.step": 1}), ConfigError, "unknown key pretrain.step"),
    "value": (lambda at: gm.plan("smoke", {"pretrain.steps": -1}), ConfigError, "pretrain.steps = -1"),
    "NaN": (lambda at: gm.plan("smoke", {"sft.learning_rate": float("nan")}), ConfigError, "can't be written as YAML"),
    "text": (lambda at: gm.plan("smoke", "pretrain.steps=1"), ConfigError, "The overrides are a single text"),
    "no value": (lambda at: gm.plan("smoke", ["pretrain.steps"]), ConfigError, "lacks a value"),
    "stage": (lambda at: gm.plan("smoke", to="tokenise"), ConfigError, "Unknown stage tokenise"),
    "secret": (
        lambda at: gm.plan({"extends": "smoke", "runtime": {"store": "ftp://me:hunter22@host/x"}}),
        ConfigError,
        "holds a password",
    ),
    "run": (lambda at: gm.run("smoke", to="tokenise", store=at / "s"), ConfigError, "Unknown stage tokenise"),
    "store": (lambda at: gm.run("smoke", to="download", store=at / "full"), StoreError, "not empty and not a store"),
}
STORE: dict[str, Bad] = {
    "not a path": (lambda at: gm.store(None), ConfigError, "store is None"),  # type: ignore[arg-type]
    "none": (lambda at: gm.store(at / "nowhere"), StoreError, "No store exists"),
    "no store": (lambda at: gm.store(at / "full"), StoreError, "not a store"),
    "no name": (lambda at: gm.store(""), ConfigError, "The address of the store is empty"),
    "protocol": (lambda at: gm.store("nosuch://bucket"), StoreError, "nosuch"),
}
TABLES = {"dedup": DEDUP, "filter": FILTER, "tokenizer": TOKENIZER, "plan": PLAN, "store": STORE}
CASES = [pytest.param(*case, id=f"{table} {name}") for table, cases in TABLES.items() for name, case in cases.items()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file.bin").write_bytes(b"")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "tokenizer.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(("call", "kind", "said"), CASES)
def test_a_wrong_call_is_one_typed_error_and_leaves_nothing(
    call: Callable[[Path], object], kind: type[gm.GristmillError], said: str, place: Path
) -> None:
    before = sorted(place.rglob("*"))
    with pytest.raises(kind) as raised:
        call(place)
    assert said in raised.value.message, raised.value.message
    assert raised.value.remedy
    assert "hunter22" not in str(raised.value)
    assert sorted(place.rglob("*")) == before


def test_remedies_name_arguments_in_place_of_options() -> None:
    with pytest.raises(ConfigError) as caught:
        gm.plan("smoke", to="signals")
    assert caught.value.remedy == "End after filter, or name it in the argument refresh."
    assert str(caught.value).endswith(caught.value.remedy)
