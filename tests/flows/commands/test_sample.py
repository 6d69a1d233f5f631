"""`gristmill sample`: the shown documents are those asked for, and nothing in them acts where they are shown."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import refs
from storage.manifest import InputRef
from storage.shards.documents import Document, shard_name, write_documents
from storage.store import Store
from tasks.text import tally
from tests.flows.commands.test_cli import gristmill, publish

EVIL = "\x1b[2J[bold]</pre><script>fetch('https://evil.example')</script>\u202e & Mills"
SHARDS = 3
DOCUMENTS = [
    *(
        Document.new(f"Number {n}, of the mills by river {n * n}. " * (n % 7 + 1), "rivers", path=f"{n}.txt")
        for n in range(40)
    ),
    Document.new(EVIL, "web", meta={"url": "https://evil.example/<a>"}, language="en"),
    Document.new("again and " * 60, "web")._replace(metadata="written elsewhere"),
    Document.new("x" * 3000 + " The NEEDLE in it " + "y" * 5000, "web"),
]
KEPT = [one for place, one in enumerate(DOCUMENTS) if place // SHARDS % 2]  # of each shard every other row


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with documents, a signal of them, and a filter's artifact with a part of them."""
    folder = tmp_path_factory.mktemp("sample")
    store = Store(str(folder / "store"))

    def shards(which: list[Document], part: str) -> dict[str, bytes]:
        files = {}
        for number in range(SHARDS):
            write_documents(folder / "shard", which[number::SHARDS])
            files[f"{part}/{shard_name(number)}"] = (folder / "shard").read_bytes()
        return files

    publish(store, "dedup", shards(DOCUMENTS, "documents"))
    scores = {}
    for number in range(SHARDS):
        values = [float(one.metadata[10:-6]) if ".txt" in one.metadata else None for one in DOCUMENTS[number::SHARDS]]
        table = pa.table({"score": pa.array(values, pa.float64()), "name": ["n"] * len(values)})
        pq.write_table(table, folder / "signals")
        scores[shard_name(number)] = (folder / "signals").read_bytes()
    measured = InputRef(location=refs.resolve(store, "tiny/dedup"), part="documents")
    of_form = published(store, "form", scores, origins={"documents": measured})
    kept = {**shards(KEPT, "documents"), **shards([DOCUMENTS[0]], "removed")}
    published(store, "filter", kept, uses={"form": InputRef(location=of_form)})
    return store


def published(store: Store, stage: str, files: dict[str, bytes], **links: dict[str, InputRef]) -> str:
    """An artifact with a lineage, and its ref."""
    location = publish(store, stage, files)
    manifest = store.manifest(location)
    assert manifest is not None
    path = Path(store.url) / "artifacts" / location / "manifest.json"
    path.chmod(0o644)
    path.write_text(manifest.model_copy(update=links).to_json())
    return location


def sampled(store: Store, ref: str, *arguments: str) -> dict[str, Any]:
    said = gristmill("sample", ref, *arguments, "--json", "--store", store.url)
    assert said.returncode == 0, said.stderr
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def ids(found: dict[str, Any]) -> list[str]:
    return [one["id"] for one in found["documents"]]


def test_the_first_by_a_measure_are_those_of_a_plain_sort(store: Store) -> None:
    longest = sampled(store, "tiny/dedup", "--by", "longest", "--number", "9")
    assert ids(longest)[:2] == [DOCUMENTS[-1].id, DOCUMENTS[-2].id]
    assert [one["characters"] for one in longest["documents"]] == sorted(
        (len(one.text) for one in DOCUMENTS), reverse=True
    )[:9]
    shortest = sampled(store, "tiny/dedup", "--by", "shortest", "--number", "9")["documents"]
    assert [one["value"] for one in shortest] == sorted(len(one.text) for one in DOCUMENTS)[:9]
    repetitive = sampled(store, "tiny/dedup", "--by", "repetitive", "--number", "2")
    assert ids(repetitive) == [DOCUMENTS[-1].id, DOCUMENTS[-2].id]


def test_the_worst_by_a_signal_are_found_in_what_was_made_of_the_measured_documents_too(store: Store) -> None:
    of_form = [f"--by={name}:score" for name in ("tiny/form", "form")]
    best = sampled(store, "tiny/dedup", of_form[0], "--number=3")
    assert [(one["value"], one["origin"]) for one in best["documents"]] == [(n, f"{n}.txt") for n in (39, 38, 37)]
    assert (best["matching"], best["total"]) == (40, 43)  # three have no value
    rivers = [number for number, one in enumerate(DOCUMENTS) if one in KEPT and one.source == "rivers"]
    for by in of_form:
        kept = sampled(store, "tiny/filter", by, "--lowest", "--number=4")["documents"]
        assert [one["value"] for one in kept] == rivers[:4]
    removed = sampled(store, "tiny/filter", "--removed")
    assert ids(removed) == [DOCUMENTS[0].id]


def test_a_seed_draws_the_same_documents_evenly(store: Store) -> None:
    drawn = Counter[str]()
    for seed in range(40):
        once = ids(sampled(store, "tiny/dedup", f"--seed={seed}", "--number=10", "--source=rivers"))
        assert len(set(once)) == 10
        drawn.update(once)
    assert len(drawn) == 40
    assert max(drawn.values()) < 25  # 10 expected of each, with a standard deviation of 2.7
    assert once == ids(sampled(store, "tiny/dedup", "--seed=39", "--number=10", "--source=rivers"))


def test_words_are_found_in_any_case_and_shown_with_how_much_is_left_out(store: Store) -> None:
    found = sampled(store, "tiny/dedup", "--search", "the needle", "--width", "100")
    (one,) = found["documents"]
    assert (found["matching"], found["total"]) == (1, 43)
    assert "The NEEDLE" in one["text"]
    assert (one["start"] + len(one["text"]) + one["left_out"], len(one["text"])) == (len(DOCUMENTS[-1].text), 100)
    said = gristmill("sample", "tiny/dedup", "--search=the needle", "--width=100", "--store", store.url).stdout
    assert f"[{one['start']:,} characters before]" in said
    assert f"[{one['left_out']:,} more characters]" in said
    assert sampled(store, "tiny/dedup", "--search=[a-z]+")["documents"] == []
    assert sampled(store, "tiny/dedup", "--search=needle", "--width=0")["documents"][0]["text"] == DOCUMENTS[-1].text


def test_a_text_acts_neither_at_the_terminal_nor_on_the_page(store: Store, tmp_path: Path) -> None:
    said = gristmill("sample", "tiny/dedup", "--search=evil", "--store", store.url).stdout
    assert "[bold]</pre><script>" in said
    assert not {"\x1b", "\u202e"} & set(said)
    file = tmp_path / "look.html"
    assert gristmill("sample", "tiny/dedup", "--number=99", f"--html={file}", "--store", store.url).returncode == 0
    page = file.read_text()
    assert page.count("<script>") == page.count("</script>") == 1
    assert len(re.findall("<article>", page)) == len(DOCUMENTS)
    assert not re.search(r"<[^>]*\b(src|href)=", page)
    assert "default-src 'none'" in page
    texts = [html.unescape(text) for text in re.findall("<pre>(.*?)</pre>", page, re.DOTALL)]
    assert {one.text for one in DOCUMENTS if one.text != EVIL} < set(texts)
    assert not {"\x1b", "\u202e"} & set(page)
    missing = gristmill("sample", "tiny/dedup", f"--html={tmp_path}/none/look.html", "--store", store.url)
    assert (missing.returncode, "can't be written" in missing.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny/dedup", "--by=worst"], "--by worst is not a measure."),
        (["tiny/dedup", "--by=tiny/form:name"], "no column name of numbers. What to do: Choose one of score."),
        (["tiny/dedup", "--by=tiny/dedup:text"], "Name an artifact of signals"),
        (["tiny/dedup", "--by=longest", "--lowest"], "--lowest doesn't apply to --by longest."),
        (["tiny/dedup", "--by=longest", "--seed=3"], "--seed is for a random choice."),
        (["tiny/dedup", "--source=river"], "Sources are rivers, web."),
        (["tiny/dedup", "--removed"], "keep_removed"),
        (["tiny/form"], "tiny/form has no documents."),
        (["tiny/dedup", "--json", "--html=x.html"], "exclude each other"),
    ],
)
def test_what_does_not_apply_is_refused(arguments: list[str], said: str, store: Store) -> None:
    refused = gristmill("sample", *arguments, "--store", store.url)
    assert refused.returncode == 1
    assert said in " ".join(refused.stderr.split())


def test_a_signal_of_other_documents_is_refused(store: Store, tmp_path: Path) -> None:
    documents = Path(store.url) / "artifacts" / refs.resolve(store, "tiny/dedup") / "documents" / shard_name(0)
    publish(store, "tokens", {f"documents/{shard_name(0)}": documents.read_bytes()})
    write_documents(tmp_path / "other", [Document.new("another", "web")])
    publish(store, "other", {f"documents/{shard_name(0)}": (tmp_path / "other").read_bytes()})
    assert sampled(store, "tiny/tokens", "--by=tiny/form:score", "--number=1")["documents"][0]["value"] == 39
    refused = gristmill("sample", "tiny/other", "--by=tiny/form:score", "--store", store.url)
    assert "was not measured on the documents" in refused.stderr


@pytest.mark.parametrize(
    ("stated", "counted"),
    [
        ("https://creativecommons.org/licenses/by-nc-sa/3.0/us/", "CC-BY-NC-SA-3.0"),
        ("http://www.creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        (
            "https://example.org/creativecommons.org/licenses/by/4.0",
            "https://example.org/creativecommons.org/licenses/by/4.0",
        ),
        (" MIT\n  License ", "MIT License"),
        (["MIT", "Apache-2.0"], "MIT, Apache-2.0"),
        ({"name": "MIT"}, None),
        ("", None),
    ],
)
def test_licences_are_counted_by_one_name(stated: object, counted: str | None) -> None:
    counts = Counter[str]()
    document = Document.new("text", "web", license=stated)
    tally.add(counts, document, 4)
    assert tally.by_value(counts, tally.LICENCE, 1) == [(counted or tally.NOT_STATED, 1)]
    tally.add(counts, document, 4, -1)
    assert not +counts


def test_kinds_beyond_a_number_are_one_and_add_up() -> None:
    counts = Counter[str]()
    documents = [Document.new(f"{n}", "web", license=f"terms {n // 2}") for n in range(3 * tally.KINDS)]
    for document in documents:
        tally.add(counts, document, 1)
    assert len(counts) <= tally.KINDS + 1
    rows = tally.by_value(counts, tally.LICENCE, len(documents) + 5)
    assert rows[-2:] == [(tally.OTHER, len(documents) - 2 * tally.SHOWN), (tally.NOT_STATED, 5)]
    for document in documents:
        tally.add(counts, document, 1, -1)
    assert not any(counts.values())
