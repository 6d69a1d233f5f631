"""Hosts, addresses and words of the user's own lists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import ConfigError, EmptyOutput, SourceError
from storage.shards.documents import Document
from storage.store import Store
from tasks.filter import filter_documents
from tasks.filter.config import FilterConfig
from tasks.filter.lists.family import Unlisted
from tasks.filter.lists.measure import ListsConfig, measure_lists
from tasks.filter.lists.words import WordList
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.filter.code.test_code import run
from tests.tasks.filter.test_filter import GOOD, RULES, questions, write

URLS = {
    "https://sub.Blocked.example/a": "lists.hosts",
    "http://blocked.example:8080": "lists.hosts",
    "//ads.example/": "lists.hosts",
    "https://www.fine.example/Bad/": "lists.urls",
    "http://fine.example/Bad#top": "lists.urls",
    "https://fine.example/cheap-casino": "lists.url_words",
    "https://fine.example/cheap": "",
    "https://fine.example/Badly": "",
    "https://notblocked.example/bad": "",
    "no address at all": "",
    "http://[": "",
}


def lists(folder: Path, **files: str) -> dict[str, str]:
    """Files with these contents, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return {name: str(folder / name) for name in files}


def measure(config: dict[str, Any], text: str = "", **metadata: Any) -> dict[str, Any]:
    chosen = ListsConfig.model_validate(config)
    row: dict[str, Any] = measure_lists(chosen, pa.array([text]), pa.array([json.dumps(metadata)])).to_pylist()[0]
    return row


def test_listed_hosts_addresses_and_words_in_addresses_are_removed(tmp_path: Path) -> None:
    files = lists(
        tmp_path / "lists",
        hosts="# mine\nblocked.example\n\n0.0.0.0 ads.example # tracker\n",
        urls="http://fine.example/Bad\n",
        words="casino\ncheap\n",
    )
    measured = {"hosts": [files["hosts"]], "urls": [files["urls"]], "url_words": [{"file": files["words"], "least": 2}]}
    documents = {url: Document.new(f"{n} {GOOD}", "web", url=url) for n, url in enumerate(URLS)}
    kept, verdicts, _ = run(tmp_path, list(documents.values()), lists={"measure": measured})
    assert {url: verdicts[d.id].reason if d.id in verdicts else "" for url, d in documents.items()} == URLS
    assert len(kept) == sum(not reason for reason in URLS.values())
    details = {verdicts[document.id].detail for document in documents.values() if document.id in verdicts}
    assert details == {"blocked.example", "ads.example", "fine.example/Bad", "casino,cheap"}


def test_words_in_addresses_may_be_within_words(tmp_path: Path) -> None:
    file = lists(tmp_path, words="cas-ino")["words"]
    url = "https://fine.example/mycas_ino1"
    assert measure({"url_words": [{"file": file, "anywhere": True}]}, url=url)["listed_url_words"] == "casino"
    assert measure({"url_words": [{"file": file}]}, url=url)["listed_url_words"] == ""


def test_a_field_that_no_document_has_is_no_silent_pass(tmp_path: Path) -> None:
    file = lists(tmp_path / "lists", hosts="blocked.example")["hosts"]
    documents = [Document.new(GOOD, "web", link="https://blocked.example"), Document.new(f"A {GOOD}", "web", url=1)]
    with pytest.raises(EmptyOutput, match=r"None of 2 documents has an address in its metadata \(url, uri"):
        run(tmp_path / "a", documents, lists={"measure": {"hosts": [file]}})
    own = {"hosts": [file], "url_fields": ["link"]}
    kept, _, _ = run(tmp_path / "b", documents, lists={"measure": own})
    assert list(kept) == [documents[1].id]


def test_words_are_for_the_language_that_is_identified(tmp_path: Path) -> None:
    files = lists(tmp_path / "lists", en="river\n", fr="hills\n", any="zyzzyva\n")
    documents = [
        Document.new(GOOD, "a"),
        Document.new(GOOD.replace("river", "stream").replace("farms", "Zyzzyva"), "a"),
    ]
    clean = Document.new(GOOD.replace("river", "stream"), "a")
    _, verdicts, _ = run(tmp_path / "en", [*documents, clean], lists={"measure": {"words": files}})
    assert [(verdicts[document.id].reason, verdicts[document.id].detail) for document in documents] == [
        ("lists.words.en", "river"),
        ("lists.words.any", "zyzzyva"),
    ]
    kept, _, _ = run(tmp_path / "fr", documents, lists={"measure": {"words": {"fr": files["fr"]}}})
    assert len(kept) == 2
    signals = pa.record_batch({"listed_word_fr": ["hills"]})
    with pytest.raises(ConfigError, match="need the language"):
        Unlisted("lists.words.fr", "listed_word_fr", "fr").test(signals)


def test_a_share_of_those_with_a_listed_word_stays(tmp_path: Path) -> None:
    words = lists(tmp_path / "lists", en="river\n")
    documents = [Document.new(f"{GOOD} Number {n}.", "a") for n in range(60)]
    chosen = {"measure": {"words": words}, "keep_listed_words": {"en": 0.5}}
    kept, _, _ = run(tmp_path / "a", documents, lists=chosen)
    again, _, _ = run(tmp_path / "b", documents[::-1], lists=chosen)
    assert 15 < len(kept) < 45
    assert kept.keys() == again.keys()
    with pytest.raises(ValueError, match="names de, but"):
        FilterConfig.model_validate({"lists": chosen | {"keep_listed_words": {"de": 0.5}}})


def expression(entries: list[str], *, whole: bool) -> re.Pattern[str]:
    """As datatrove compiles it, in small letters."""
    words = "|".join(re.escape(entry) for entry in entries)
    return re.compile(rf"(?:\W|^)({words})(?:\W|$)" if whole else words)


TEXTS = st.lists(st.sampled_from(["ab", "é", " ", "-", "c d", "AB", "_", "\n", "$", "女"]), max_size=8).map("".join)


@given(st.lists(TEXTS.filter(str.strip), min_size=1, max_size=4), TEXTS, st.booleans())
@settings(max_examples=500, deadline=None)
def test_words_are_found_where_c4s_expression_finds_them(entries: list[str], text: str, whole: bool) -> None:
    lower = [entry.lower() for entry in entries]
    assert bool(WordList(entries, whole=whole).find(text)) == bool(expression(lower, whole=whole).search(text.lower()))


def test_words_of_c4_are_found_in_real_text_where_its_expression_finds_them(shared_data: Callable[[str], Path]) -> None:
    import gzip

    entries = (shared_data("filters") / "badwords_ldnoobw" / "en").read_text().split("\n")
    entries = [entry for entry in entries if entry]
    words, whole = WordList(entries, whole=True), expression(entries, whole=True)
    found: list[bool] = []
    with gzip.open(shared_data("pretrain") / "c4_demo" / "docs.jsonl.gz", "rt") as lines:
        for line in [*lines][:400]:
            text = json.loads(line)["text"]
            for given_text in (text, f"{text[:500]} {entries[len(found) % len(entries)]}!"):
                found.append(bool(words.find(given_text)))
                assert found[-1] == bool(whole.search(given_text.lower()))
    assert 0 < sum(found) < len(found)


def test_the_files_are_in_the_key_and_must_say_something(tmp_path: Path) -> None:
    files = lists(tmp_path / "lists", hosts="a.example\n", empty="# nothing\n")
    inputs = [write(tmp_path / "in", [GOOD]), questions(tmp_path / "benchmarks")]
    config = FilterConfig.model_validate({**RULES, "lists": {"measure": {"words": {"any": files["hosts"]}}}})
    store = Store(str(tmp_path / "store"))

    def made() -> set[str]:
        before = set(store.locations())
        with open_session(Session(store, runtime_of(workers=1))):
            filter_documents.materialize(config, inputs)
        return {location.partition("/")[0] for location in set(store.locations()) - before}

    assert "lists" in made()
    assert made() == set()
    Path(files["hosts"]).write_text("b.example\n")
    assert made() == {"lists", "filter"}
    for name, problem in (("empty", "is empty"), ("missing", "can.t be read")):
        with pytest.raises(SourceError, match=problem):
            run(
                tmp_path / name,
                [Document.new(GOOD, "a")],
                lists={"measure": {"hosts": [str(tmp_path / "lists" / name)]}},
            )
