"""Reading sources into documents and pairs: formats, bad rows, identity."""

from __future__ import annotations

import codecs
import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from storage.errors import SourceError
from storage.shards.documents import read_documents, read_ledger
from tasks.download import DownloadConfig, download
from tasks.download.config import EmbeddedSource, FileSource, HubSource
from tasks.download.sources.embedded import documents, held_out_questions, instructions, masked, preferences, purpose
from tasks.download.sources.files import find_files, fingerprint
from tasks.posttrain.rows.prepare import read_rows
from tasks.stage.output import Output
from tests.runtimes import runtime_of

GOOD = [f"Document number {number} says something of its own." for number in range(5)]


def run(tmp_path: Path, *sources: FileSource | HubSource, **more: object) -> Output:
    config = DownloadConfig.model_validate(
        {"sources": [source.model_dump() for source in sources], "benchmarks": ["piqa"], "benchmark_items": 3, **more}
    )
    out = Output.at(tmp_path / "made", stage="download", runtime=runtime_of(workers=1))
    download.function(config, out)
    return out


def texts(out: Output) -> list[str]:
    return [document.text for path in sorted(out.path.glob("documents/*")) for document in read_documents(path)]


def source(path: Path, **more: object) -> FileSource:
    return FileSource.model_validate({"kind": "files", "name": "mine", "paths": [str(path)], **more})


def lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_every_format_gives_the_same_documents(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"data.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"text": GOOD}), path)
    elif ending == "jsonl.zst":
        with pa.output_stream(str(path), compression="zstd") as stream:
            stream.write(lines(GOOD))
    else:
        path.write_bytes(gzip.compress(lines(GOOD)) if ending == "jsonl.gz" else lines(GOOD))
    assert texts(run(tmp_path, source(path))) == GOOD


def test_text_files_are_documents_and_globs_are_sorted(tmp_path: Path) -> None:
    for number, text in enumerate(GOOD):
        (tmp_path / f"{number}.{'md' if number % 2 else 'txt'}").write_text(text)
    config = FileSource(kind="files", name="mine", paths=[str(tmp_path / "*.txt"), str(tmp_path / "*.md")])
    assert texts(run(tmp_path, config)) == GOOD


def test_bad_rows_are_quarantined_by_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    bad = [
        (b'{"text": "unfinished', "broken_json"),
        (b'{"text": "caf\xe9"}', "invalid_utf8"),
        (rb'{"text": "a\u0000b"}', "nul"),
        (b'{"text": "  "}', "empty"),
        (b'{"title": "no text"}', "no_text"),
        (b"[1, 2]", "not_an_object"),
        (rb'{"text": "\ud800"}', "lone_surrogate"),
        (json.dumps({"text": "long " * 3_000_000}).encode(), "too_long"),
        (b'{"text": 7}', "no_text"),
        (b'{"text": ["a", "b"]}', "no_text"),
        (rb'{"text": "sound", "title": "\ud800"}', "lone_surrogate"),
        (rb'{"text": "sound", "\ud800": 1}', "lone_surrogate"),
        (b'{"text": "deep", "meta": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested_too_deep"),
    ]
    path.write_bytes(lines(GOOD[:2]) + b"".join(line + b"\n" for line, _ in bad) + lines(GOOD[2:]))
    out = run(tmp_path, source(path), max_quarantined_share=0.9, max_document_bytes=10_000_000)
    assert texts(out) == GOOD
    ledger = [verdict for shard in out.path.glob("ledger/*") for verdict in read_ledger(shard)]
    assert [verdict.reason for verdict in ledger] == [reason for _, reason in bad]
    why = {11: ": text is a number", 12: ": text is a list"}
    assert [verdict.detail for verdict in ledger] == [f"{path}:{line}{why.get(line, '')}" for line in range(3, 16)]
    assert out.counts["documents"] == {"in": 18, "kept": 5, "removed": {}, "quarantined": 13}


def test_any_column_is_passed_on_whatever_its_name(tmp_path: Path) -> None:
    names = ("source", "cls", "id", "self", "metadata", "text")  # such as those of Dolma and RedPajama
    row = {name: f"value of {name}" for name in names} | {"content": GOOD[0]}
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    out = run(tmp_path, source(tmp_path / "data.jsonl", text_column="content"))
    (document,) = read_documents(next(out.path.glob("documents/*")))
    assert (document.text, document.source) == (GOOD[0], "mine")
    assert json.loads(document.metadata) == {name: f"value of {name}" for name in names}


def test_of_a_parquet_file_only_the_damaged_rows_are_quarantined(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    values = [text.encode() for text in GOOD[:2]] + [b"caf\xe9"] + [text.encode() for text in GOOD[2:]]
    column = pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())
    plain = {"use_dictionary": False, "write_statistics": False, "write_page_checksum": True, "compression": "none"}
    pq.write_table(pa.table({"text": column}), path, row_group_size=4, **plain)
    out = run(tmp_path, source(path), max_quarantined_share=0.9)
    assert texts(out) == GOOD
    (verdict,) = (verdict for shard in out.path.glob("ledger/*") for verdict in read_ledger(shard))
    assert (verdict.reason, verdict.detail) == ("invalid_utf8", f"{path} row 3")
    data = path.read_bytes()
    at = data.index(GOOD[4].encode())
    path.write_bytes(data[:at] + b"d" + data[at + 1 :])
    out = run(tmp_path / "again", source(path), max_quarantined_share=0.9)
    assert texts(out) == GOOD[:3]
    reasons = [(v.reason, v.detail) for shard in out.path.glob("ledger/*") for v in read_ledger(shard)]
    assert reasons[1:] == [("damaged_page", f"{path} row {row}") for row in (5, 6)]


def test_a_loop_of_symbolic_links_multiplies_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(lines(GOOD))
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "b.jsonl").symlink_to(tmp_path / "data" / "a.jsonl")
    assert texts(run(tmp_path, source(tmp_path / "data" / "**" / "*.jsonl"))) == GOOD


def test_labelled_rows_are_a_part_of_their_own_and_absent_where_no_source_has_that_role(tmp_path: Path) -> None:
    row = {"prompt": "Why?", "completion": "So.", "label": False}
    (tmp_path / "rated.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "data.jsonl").write_bytes(lines(GOOD))
    texts = source(tmp_path / "data.jsonl", name="texts")
    out = run(tmp_path / "with", source(tmp_path / "rated.jsonl", role="labelled"), texts)
    (written,) = map(json.loads, (out.path / "labelled" / "pairs.jsonl").read_text().splitlines())
    assert (written["completion"][0]["content"], written["label"]) == ("So.", False)
    assert out.counts["labelled"] == 1
    plain = run(tmp_path / "without", texts)
    assert not (plain.path / "labelled").exists()
    assert "labelled" not in plain.counts
    assert DownloadConfig().roles == ("instructions", "preferences")


@pytest.mark.parametrize(
    ("row", "reason", "key"),
    [
        ({"instruction": ["a"], "output": "b"}, "no_text", "instruction"),
        ({"instruction": "a", "output": 7}, "no_text", "output"),
        ({"instruction": "a", "output": "\ud800"}, "lone_surrogate", "output"),
        ({"instruction": "a\0", "output": "b"}, "nul", "instruction"),
        ({"messages": [{"role": None, "content": "a"}]}, "unknown_role", "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "unknown_role", "messages[0].role"),
        ({"messages": [None]}, "unknown_role", "messages[0]"),
        ({"messages": {"role": "user"}}, "no_messages", "messages"),
        ({"question": "a", "answer": "b"}, "unknown_form", "its keys are question, answer"),
        (
            {"messages": [], "instruction": "a", "output": "b"},
            "ambiguous_form",
            "its keys are those of messages (messages) and alpaca (instruction, output)",
        ),
        (
            {"chosen": "a", "rejected": "b"},
            "unknown_form",
            "its keys are chosen, rejected, as implicit_prompt of role preferences has them",
        ),
        (
            {"prompt": "a", "completion": "b", "label": True},
            "no_method",
            "its keys prompt, completion, label are those of labelled answers, for the role labelled",
        ),
    ],
)
def test_a_pair_that_cant_be_used_is_quarantined(row: dict[str, object], reason: str, key: str, tmp_path: Path) -> None:
    good = {"instruction": "What ends a line?\u2028\x85", "output": "Not \u2029 this."}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(row))
    (tmp_path / "data.jsonl").write_bytes(lines(GOOD))
    asked = source(tmp_path / "pairs.jsonl", role="instructions"), source(tmp_path / "data.jsonl", name="texts")
    out = run(tmp_path, *asked, max_quarantined_share=0.9)
    (verdict,) = (verdict for shard in out.path.glob("ledger/*") for verdict in read_ledger(shard))
    assert verdict.reason == reason
    assert verdict.detail.startswith(f"{tmp_path / 'pairs.jsonl'}:2: {key}")
    assert out.counts["documents"]["in"] == len(GOOD), "a pair is no document"
    assert (out.counts["instructions"], out.counts["instructions_quarantined"]) == (1, 1)
    (kept,) = read_rows([out.path / "instructions" / "pairs.jsonl"])
    assert [message["content"] for message in kept["messages"]] == [good["instruction"], good["output"]]


def test_fields_of_instructions_are_kept_by_choice_and_reach_the_rows_of_post_training(tmp_path: Path) -> None:
    rows = [
        {"prompt": "1+1", "completion": "2", "tests": ["assert x == 2"], "level": 3, "other": "left out"},
        {"prompt": "1+2", "completion": "3", "tests": None, "level": {"easy": [True]}},
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "texts.jsonl").write_bytes(lines(GOOD))

    def read(**more: object) -> list[dict[str, object]]:
        pairs = source(tmp_path / "data.jsonl", role="instructions", **more)
        made = run(tmp_path / str(len(more)), source(tmp_path / "texts.jsonl", name="texts"), pairs)
        return [*read_rows([made.path / "instructions" / "pairs.jsonl"])]

    plain, kept = read(), read(fields=["tests", "level"])
    assert kept == [{**plain[0], "tests": ["assert x == 2"], "level": 3}, {**plain[1], "level": {"easy": [True]}}]
    assert {*plain[0]} == {"id", "source", "messages"}
    assert "fields" not in source(tmp_path / "data.jsonl").model_dump(), "keys of artifacts from before stay valid"
    with pytest.raises(ValidationError, match="fields are kept of instructions, not of documents"):
        source(tmp_path / "data.jsonl", fields=["tests"])
    with pytest.raises(ValidationError, match="a row has its own reference"):
        source(tmp_path / "data.jsonl", role="instructions", fields=["reference"])


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", lines(GOOD[:2])), ("b.jsonl", b""), ("c.md", b"A"), ("d.txt", b"B")):
        (tmp_path / name).write_bytes(codecs.BOM_UTF8 + content)
    (tmp_path / "b.jsonl").write_bytes(codecs.BOM_UTF8 + b"\n" + lines(GOOD[2:3]))
    assert texts(run(tmp_path, source(tmp_path / "*.*"))) == [*GOOD[:3], "A", "B"]


def test_a_row_is_named_by_its_file_and_place_there_whatever_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        Path(folder).mkdir()
        Path(folder, "data.jsonl").write_bytes(lines([*GOOD, " "]))
    pq.write_table(pa.table({"text": [*GOOD, "a\0b"]}), "two/more.parquet")
    out = run(tmp_path, source(Path("*") / "*.*"), max_quarantined_share=0.5)
    found = [(v.reason, v.detail, v.id) for shard in out.path.glob("ledger/*") for v in read_ledger(shard)]
    places = ["one/data.jsonl:6", "two/data.jsonl:6", "two/more.parquet row 6"]
    assert [(reason, place) for reason, place, _ in found] == [*zip(["empty", "empty", "nul"], places, strict=True)]
    assert len({identity for *_, identity in found}) == 3, "files of one name in two folders are told apart"


@pytest.mark.parametrize(
    ("role", "rows", "message", "remedy"),
    [
        (
            "documents",
            [{"title": "a", "body": "b"}, {"title": "a", "\ud800": 1}] * 9,
            "18 of 18 rows lack the column text .*data.jsonl:1.*: title, body, '.ud800'",
            "Set text_column",
        ),
        (
            "instructions",
            [{"question": "a", "answer": "b"}],
            "1 of 1 rows lack the keys of instructions .*: question, answer",
            "alpaca (instruction, output | ",
        ),
        (
            "preferences",
            [{"prompt": "a", "chosen": "b", "reject": "c"}],
            "lack the keys of preferences .*: prompt, chosen, reject",
            "explicit_prompt (prompt, chosen, rejected)",
        ),
        ("documents", [{}], "none at all", "Set text_column"),
        ("documents", [{str(n): n for n in range(99)}], "10, 11, …", "Set text_column"),
    ],
)
def test_a_source_without_the_column_that_is_read_says_which_it_has(
    role: str, rows: list[dict[str, Any]], message: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "good.jsonl").write_bytes(lines(GOOD))
    good = source(tmp_path / "good.jsonl", name="good")
    with pytest.raises(SourceError, match=message) as caught:
        run(tmp_path, good, source(tmp_path / "data.jsonl", role=role))
    assert remedy in caught.value.remedy


def test_a_data_set_of_the_hub_is_streamed_and_the_wrong_role_ends_it_at_its_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder stands for the hub, of which `datasets` reads it by the same function."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "talk").mkdir(parents=True)
    rows = [{"instruction": f"Question {number}?", "output": "An answer."} for number in range(4)]
    (tmp_path / "owner" / "talk" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    books = source(tmp_path / "books.jsonl")
    (tmp_path / "books.jsonl").write_bytes(lines(["A book."]))

    def talk(**more: Any) -> HubSource:
        return HubSource(name="talk", dataset="owner/talk", revision="0123456", **more)

    with pytest.raises(SourceError, match="lack the column text") as caught:
        run(tmp_path / "wrong", books, talk())
    assert "write `role: instructions` for the source" in str(caught.value)
    assert not list((tmp_path / "wrong").rglob("*.parquet")), "nothing was made of the other source either"
    out = run(tmp_path / "right", books, talk(role="instructions", limit=3))
    assert len(list(read_rows([out.path / "instructions" / "pairs.jsonl"]))) == 3


def test_a_folder_instead_of_files_and_a_relative_path_say_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    (tmp_path / "lines.jsonl").write_bytes(lines(GOOD))
    monkeypatch.chdir(tmp_path)
    for pattern, message, remedy in (
        ("pipe.jsonl", "pipe.jsonl is a pipe or a device", "plain files"),
        ("p*.jsonl", "p*.jsonl matches only a pipe or a device", "plain files"),
        ("loop.jsonl", "loop.jsonl is a broken link", "plain files"),
        ("l*.jsonl", "loop.jsonl is a broken link", "Repair the link"),
        ("s3://bucket/a.jsonl", "s3://bucket/a.jsonl is a URL, which can't be read", "Download it"),
        ("data", "data is a folder", "data/**/*.jsonl"),
        ("data/", "is a folder", "data/**/*.jsonl"),
        ("data/*", "matches only folders", "data/*/**/*.jsonl"),
        ("nowhere/*.md", f"no file matches nowhere/*.md in {tmp_path}", "Check the path"),
        (str(tmp_path / "a.md"), f"no file matches {tmp_path / 'a.md'}.", "Check the path"),
    ):
        with pytest.raises(SourceError) as caught:
            find_files(FileSource(name="mine", paths=[pattern]))
        assert message in caught.value.message
        assert remedy in caught.value.remedy


def test_a_preference_whose_answer_is_not_the_assistants_is_quarantined(tmp_path: Path) -> None:
    user, answer = {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Because."}
    rows = [
        {"prompt": "Why?", "chosen": [answer], "rejected": "No."},
        {"prompt": "Why?", "chosen": [answer, user], "rejected": "No."},
        {"prompt": "Why?", "chosen": "No.", "rejected": [user]},
    ]
    (tmp_path / "dpo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "text.jsonl").write_bytes(lines(GOOD))
    both = source(tmp_path / "text.jsonl"), source(tmp_path / "dpo.jsonl", name="dpo", role="preferences")
    out = run(tmp_path, *both, max_quarantined_share=0.9)
    assert [v.reason for shard in out.path.glob("ledger/*") for v in read_ledger(shard)] == ["no_answer"] * 2
    assert len(list(read_rows([out.path / "preferences" / "pairs.jsonl"]))) == 1


def test_a_line_of_200_mb_is_skipped_without_being_held(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "data.jsonl"
    with path.open("wb") as file:
        file.write(lines(GOOD[:3]) + b'{"text": "')
        for _ in range(200):
            file.write(b"x" * 1_000_000)
        file.write(b'"}\n' + lines(GOOD[3:]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = run(tmp_path, source(path), max_quarantined_share=0.5, max_document_bytes=1_000_000)
    assert texts(out) == GOOD
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "no file matches"), (b"", "is empty"), (b'{"text": "good"}\nbroken\n', "data.jsonl:2: broken_json")],
)
def test_a_source_that_gives_nothing_or_too_much_rubbish_ends_the_run(
    content: bytes | None, named: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "data.jsonl").write_bytes(content)
    with pytest.raises(SourceError, match=named) as caught:
        run(tmp_path, source(tmp_path / "data.jsonl"))
    assert caught.value.remedy


def test_a_broken_archive_and_an_unknown_ending_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(GOOD) * 500)[:-300])
    (tmp_path / "b.docx").write_bytes(b"x")
    for name in ("a.jsonl.gz", "b.docx"):
        with pytest.raises(SourceError, match=name):
            run(tmp_path, source(tmp_path / name))


def test_a_file_that_fails_to_be_read_is_named_with_its_source(tmp_path: Path) -> None:
    broken = Path("/proc/self/mem")
    if not broken.exists():
        pytest.skip("no file here fails to be read")
    (tmp_path / "a.jsonl").symlink_to(broken)
    with pytest.raises(SourceError, match=r"a\.jsonl can't be read: .*Input/output error") as caught:
        fingerprint(FileSource(name="mine", paths=[str(tmp_path / "*.jsonl")]))
    assert "remove it from `paths`" in caught.value.remedy


@pytest.mark.parametrize("name", ["", "two\nlines", "\x1b[31mred"])
def test_a_name_that_no_line_of_a_ledger_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="should match pattern"):
        FileSource(name=name, paths=["a.jsonl"])


def test_a_changed_file_is_another_identity(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(lines(GOOD))
    config = DownloadConfig(sources=[source(path)])
    before = download.payload(config, ()).key()
    assert download.payload(config, ()).key() == before
    path.write_bytes(lines(GOOD[:-1]))
    assert download.payload(config, ()).key() != before


def test_pairs_come_in_the_usual_forms_and_answers_lose_a_repeated_prompt(tmp_path: Path) -> None:
    question, answer = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}
    rows = [{"instruction": "Why?", "output": "Because."}, {"messages": [question, answer]}]
    (tmp_path / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    preference = {"prompt": "Why?", "chosen": [question, answer], "rejected": "No."}
    (tmp_path / "dpo.jsonl").write_text(json.dumps(preference) + "\n")
    (tmp_path / "text.jsonl").write_bytes(lines(GOOD))
    out = run(
        tmp_path,
        source(tmp_path / "text.jsonl"),
        source(tmp_path / "sft.jsonl", name="sft", role="instructions"),
        source(tmp_path / "dpo.jsonl", name="dpo", role="preferences"),
    )
    made = [json.loads(line) for line in (out.path / "instructions/pairs.jsonl").read_text().splitlines()]
    assert [row["messages"] for row in made] == [[question, answer]] * 2
    (pair,) = [json.loads(line) for line in (out.path / "preferences/pairs.jsonl").read_text().splitlines()]
    assert (pair["prompt"], pair["chosen"]) == ([question], [answer])


def test_pairs_may_be_all_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "sft.jsonl").write_text(json.dumps({"instruction": "Why?", "output": "Because."}) + "\n")
    out = run(tmp_path, source(tmp_path / "sft.jsonl", role="instructions"))
    assert out.counts["summary"] == "1 pairs"
    assert "documents" not in out.counts


def test_held_out_titles_are_in_no_document_and_serve_one_purpose_each() -> None:
    config = EmbeddedSource(kind="embedded", corpora=["encyclopedia"], instructions=4000, preferences=4000)
    benchmark: list[Mapping[str, Any]] = list(held_out_questions(config))
    pairs: list[Mapping[str, Any]] = list(preferences(config))
    rows: list[Mapping[str, Any]] = list(instructions(config))
    asked = [row["messages"] for row in rows if row["source"] == "encyclopedia-en"]
    assert min(len(benchmark), 2 * len(pairs), len(asked)) > 800
    known = {json.loads(document.metadata)["title"] for document in documents(config) if document.source.endswith("en")}
    titles = {row["query"].removesuffix(":") for row in benchmark}
    assert {purpose(title, config.held_out_share) for title in titles} == {"benchmark"}
    assert {purpose(title, config.held_out_share) for title in known} == {"documents"}
    prompts = {messages[0]["content"] for messages in asked}, {pair["prompt"][0]["content"] for pair in pairs}
    assert not prompts[0] & prompts[1]
    for title in [*sorted(titles)[:50], *sorted(known)[:50]]:
        assert not {f"What is {title}?", f"Tell me about {title}.", f"Describe {title}."} & (prompts[0] | prompts[1])
    answers = [pair[side][0]["content"] for pair in pairs for side in ("chosen", "rejected")]
    assert len(set(answers)) == len(answers), "no answer is preferred here and rejected there"
    golds = [row["gold"] for row in benchmark]
    assert {golds.count(place) for place in range(4)} < set(range(len(golds) // 8, len(golds) // 2)), "no lazy answer"


def test_a_title_is_masked_as_a_word_and_not_inside_one() -> None:
    assert masked("A park is no parkway; the Park (closed).", "Park (place)") == "A It is no parkway; the It (closed)."


def test_dates_that_python_has_no_value_for_cost_their_field_and_no_row(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    odd = {
        "late": pa.array([1 << 62] * 2, pa.int64()).cast(pa.timestamp("us")),
        "day": pa.array([2**31 - 1] * 2, pa.int32()).cast(pa.date32()),
        "where": pa.array([0, 0]).cast(pa.timestamp("s", tz="Nowhere/At_all")),
    }
    for name, column in odd.items():
        pq.write_table(pa.table({"text": GOOD[:2], "page": [3, 4], name: column}), path)
        out = run(tmp_path / name, source(path))
        found = [document for shard in out.path.glob("documents/*") for document in read_documents(shard)]
        assert [(document.text, document.metadata) for document in found] == [
            (GOOD[0], '{"page": 3}'),
            (GOOD[1], '{"page": 4}'),
        ]
        assert out.counts["metadata_dropped"] == 2
        told = [{"source": "mine", "field": name, "why": "unreadable", "rows": 2}]
        assert out.counts["tables"]["Metadata left out"] == told


def test_a_column_that_is_there_twice_and_an_archive_without_a_byte_are_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array(GOOD), pa.array(GOOD)], names=["text", "text"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(SourceError, match=r"twice\.parquet has two columns text"):
        run(tmp_path, source(tmp_path / "twice.parquet"))
    for ending in ("gz", "zst"):
        (tmp_path / f"cut.jsonl.{ending}").write_bytes(b"")
        with pytest.raises(SourceError, match=rf"cut\.jsonl\.{ending} can't be read: it is empty"):
            run(tmp_path, source(tmp_path / f"cut.jsonl.{ending}"))


def test_a_files_name_may_be_of_any_bytes(tmp_path: Path) -> None:
    os.makedirs(os.fsencode(tmp_path) + b"/of \xff\xfe")
    (path,) = tmp_path.iterdir()
    (path / "data.jsonl").write_bytes(lines(GOOD) + b"broken\n")
    mine = source(tmp_path / "*" / "*.jsonl")
    assert len(fingerprint(mine)) == 1
    out = run(tmp_path / "elsewhere", mine, max_quarantined_share=0.5)
    assert texts(out) == GOOD
    (verdict,) = (verdict for shard in out.path.glob("ledger/*") for verdict in read_ledger(shard))
    assert verdict.detail.endswith("of \\udcff\\udcfe/data.jsonl:6")


def test_numbers_that_json_has_not_are_null(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(f'{{"text": "{GOOD[0]}", "a": 1e999, "b": NaN, "c": 0.5}}')
    out = run(tmp_path, source(tmp_path / "data.jsonl"))
    (document,) = read_documents(next(out.path.glob("documents/*")))
    assert document.metadata == '{"a": null, "b": null, "c": 0.5}'


def test_what_is_cut_of_a_conversation_is_counted_and_stands_in_the_ledger(tmp_path: Path) -> None:
    user, answer = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}
    rows = [{"messages": [user, answer]}, {"messages": [user, answer, user]}, {"messages": [user]}]
    (tmp_path / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "text.jsonl").write_bytes(lines(GOOD))
    both = source(tmp_path / "text.jsonl"), source(tmp_path / "sft.jsonl", name="sft", role="instructions")
    out = run(tmp_path, *both, max_quarantined_share=0.9)
    counted = {name: count for name, count in out.counts.items() if name.startswith("instructions")}
    assert counted == {"instructions": 2, "instructions_changed": 1, "instructions_quarantined": 1}
    kept = list(read_rows([out.path / "instructions" / "pairs.jsonl"]))
    assert [row["messages"] for row in kept] == [[user, answer]] * 2
    ledger = [verdict for path in out.path.glob("ledger/*") for verdict in read_ledger(path)]
    told = [(v.id, v.verdict, v.reason, v.detail.removeprefix(str(tmp_path))) for v in ledger]
    assert told[:1] == [(kept[1]["id"], "changed", "trailing_user_turn", "/sft.jsonl:2")]


@pytest.mark.parametrize(
    ("row", "said", "remedy"),
    [
        (
            {"messages": [], "instruction": "a", "output": "b"},
            "messages (messages) and alpaca (instruction, output)",
            "`form`",
        ),
        ({"prompt": "a", "completion": "b", "label": True}, "no_method, its keys prompt, completion, label", "`form`"),
        (
            {"conversations": [{"from": "bot"}]},
            "unknown_role, conversations[0].from is none of assistant",
            "Correct them",
        ),
    ],
)
def test_rows_that_end_a_run_are_named_by_line_and_key(
    row: dict[str, Any], said: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "sft.jsonl").write_text(json.dumps(row))
    (tmp_path / "text.jsonl").write_bytes(lines(GOOD))
    with pytest.raises(SourceError) as caught:
        run(tmp_path, source(tmp_path / "text.jsonl"), source(tmp_path / "sft.jsonl", name="sft", role="instructions"))
    assert f"{tmp_path / 'sft.jsonl'}:1: " in caught.value.message
    assert said in caught.value.message
    assert remedy in caught.value.remedy


def test_of_parquet_the_nested_columns_are_read_and_those_that_are_null_passed_over(tmp_path: Path) -> None:
    calls = [{"function": {"name": "add", "arguments": "{}"}}]
    rows = [
        {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": None, "tool_calls": calls}]},
        {"instruction": "Why?", "output": "Because.", "history": [["Hi", "Hello"]]},
    ]
    function = pa.struct([("name", pa.string()), ("arguments", pa.string())])
    message = pa.struct(
        [("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(pa.struct([("function", function)])))]
    )
    texts = [("instruction", pa.string()), ("output", pa.string()), ("history", pa.list_(pa.list_(pa.string())))]
    schema = pa.schema([("messages", pa.list_(message)), *texts])
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "sft.parquet")
    (tmp_path / "text.jsonl").write_bytes(lines(GOOD))
    mine = source(tmp_path / "sft.parquet", name="sft", role="instructions")
    out = run(tmp_path, source(tmp_path / "text.jsonl"), mine)
    made = [row["messages"] for row in read_rows([out.path / "instructions" / "pairs.jsonl"])]
    assert [[message["content"] for message in messages] for messages in made] == [
        ["1+1", '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'],
        ["Hi", "Hello", "Why?", "Because."],
    ]
