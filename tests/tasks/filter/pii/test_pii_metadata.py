"""Personal data in metadata: found by the rules for texts, in the fields that the profile names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.artifact import Artifact
from storage.shards.documents import Document, Verdict, read_documents, read_ledger, shard_name, write_documents
from tasks.filter import FilterConfig, filter_documents
from tasks.filter.pii_metadata.fields import fields_of, replace_fields, texts_of
from tasks.filter.pii_metadata.measure import MetadataConfig, measure_metadata
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.filter.test_filter import GOOD, RULES, questions

FIELDS = {
    "author": "Jane <jane.doe@mail.com>",
    "phone_number": "415 555 2671",
    "licence": "CC-BY",
    "views": 4155552671,
    "contact": "Write to jane.doe@mail.com.",
}


def run(folder: Path, metadata: list[str], **config: Any) -> tuple[list[Document], list[Verdict], Output]:
    """Documents of equal text with this metadata, and the verdicts on them."""
    (folder / "in").mkdir(parents=True)
    documents = [
        Document.new(f"{number} {GOOD}", "test")._replace(metadata=each) for number, each in enumerate(metadata)
    ]
    write_documents(folder / "in" / shard_name(0), documents)
    out = Output.at(folder, stage="filter", runtime=runtime_of(workers=1))
    chosen = FilterConfig.model_validate({**RULES, **config})
    filter_documents.function(chosen, Artifact.at(folder / "in"), questions(folder / "benchmarks"), out)
    kept = list(read_documents(out.path / "documents" / shard_name(0)))
    return kept, list(read_ledger(out.path / "ledger" / shard_name(0))), out


def test_it_is_replaced_in_every_field_of_text_and_noted(tmp_path: Path) -> None:
    spaced = '{"licence":  "CC-BY"}'
    (document, plain), (verdict,), out = run(tmp_path, [json.dumps(FIELDS), spaced])
    assert json.loads(document.metadata) == {
        **FIELDS,
        "author": "Jane <<EMAIL_ADDRESS>>",
        "phone_number": "<PHONE_NUMBER>",
        "contact": "Write to <EMAIL_ADDRESS>.",
    }
    assert plain.metadata == spaced, "what has none is left as it is"
    assert (verdict.id, verdict.verdict, verdict.reason, verdict.value) == (document.id, "changed", "pii_metadata", 3.0)
    assert verdict.detail == "1 EMAIL_ADDRESS in author, 1 EMAIL_ADDRESS in contact, 1 PHONE_NUMBER in phone_number"
    assert out.counts["changed"] == {"pii_metadata": 1}


def test_fields_and_actions_are_those_of_the_profile(tmp_path: Path) -> None:
    metadata = [json.dumps(FIELDS)]
    (document,), _, _ = run(tmp_path / "one", metadata, pii_metadata=["contact"])
    assert json.loads(document.metadata) == {**FIELDS, "contact": "Write to <EMAIL_ADDRESS>."}
    (document,), verdicts, _ = run(tmp_path / "none", metadata, pii_metadata=[])
    assert (document.metadata, verdicts) == (metadata[0], [])
    (document,), verdicts, _ = run(tmp_path / "kept", metadata, pii={"action": "keep"})
    assert (document.metadata, verdicts) == (metadata[0], [])
    (document,), _, _ = run(tmp_path / "surrogate", metadata, pii={"action": "surrogate"})
    author, contact = (json.loads(document.metadata)[name] for name in ("author", "contact"))
    assert "jane.doe" not in author + contact
    assert author.removeprefix("Jane <").removesuffix(">") in contact, "the same value has the same surrogate"
    drop = {"actions": {"EMAIL_ADDRESS": "drop"}}
    (document,), verdicts, out = run(tmp_path / "drop", [*metadata, "{}"], pii=drop)
    assert document.metadata == "{}"
    assert [(verdict.verdict, verdict.reason) for verdict in verdicts] == [("removed", "pii_metadata.email_address")]
    assert out.counts["documents"]["removed"] == {"pii_metadata.email_address": 1}


NESTED = {
    "meta": {"url": "https://a.org/ of jane.doe@mail.com", "author": {"phone": "415 555 2671"}},
    "tags": ["birds", "ask jane.doe@mail.com", ["deep@mail.com"]],
    "a.b": "x@mail.com",
    "a": {"b": "no mail", "n": 4155552671},
}


def test_nested_texts_are_replaced_and_named_by_their_paths(tmp_path: Path) -> None:
    (document,), (verdict,), _ = run(tmp_path, [json.dumps(NESTED)])
    assert json.loads(document.metadata) == {
        "meta": {"url": "https://a.org/ of <EMAIL_ADDRESS>", "author": {"phone": "<PHONE_NUMBER>"}},
        "tags": ["birds", "ask <EMAIL_ADDRESS>", ["<EMAIL_ADDRESS>"]],
        "a.b": "<EMAIL_ADDRESS>",
        "a": {"b": "no mail", "n": 4155552671},
    }
    assert verdict.detail == (
        '1 EMAIL_ADDRESS in ["a.b"], 1 EMAIL_ADDRESS in meta.url, 1 EMAIL_ADDRESS in tags[1], '
        "1 EMAIL_ADDRESS in tags[2][0], 1 PHONE_NUMBER in meta.author.phone"
    )


@pytest.mark.parametrize(
    ("wanted", "paths"),
    [
        (["meta"], ["meta.url", "meta.author.phone"]),
        (["meta.url"], ["meta.url"]),
        (["meta.author"], ["meta.author.phone"]),
        (["tags"], ["tags[0]", "tags[1]", "tags[2][0]"]),
        (["tags[1]"], ["tags[1]"]),
        (["a.b"], ['["a.b"]', "a.b"]),
        (["url"], []),
    ],
)
def test_a_field_within_others_is_named_by_its_path_or_by_what_holds_it(wanted: list[str], paths: list[str]) -> None:
    assert [text.path for text in texts_of(fields_of(json.dumps(NESTED)), wanted)] == paths


@pytest.mark.parametrize("depth", [99, 101, 900, 10_000])
def test_metadata_of_any_depth_is_measured_and_changed(depth: int) -> None:
    deep = '{"a": ' + "[" * depth + '"jane.doe@mail.com"' + "]" * depth + "}"
    (found,) = measure_metadata(MetadataConfig(), pa.array([deep]))["pii_metadata"].to_pylist()
    assert [finding["entity"] for finding in found] == ["EMAIL_ADDRESS"]
    assert replace_fields(deep, lambda name, text: text.replace("jane", "J")) == deep.replace("jane", "J")


def test_metadata_of_any_form_is_measured() -> None:
    odd = ["{}", None, "jane.doe@mail.com", "[1]", '"jane.doe@mail.com"', '{"": "jane.doe@mail.com"}', "{" * 2000]
    found = measure_metadata(MetadataConfig(), pa.array(odd, pa.string()))["pii_metadata"].to_pylist()
    assert [len(each) for each in found] == [0, 0, 1, 0, 1, 1, 0]
    assert found[2][0] == {"field": "", "entity": "EMAIL_ADDRESS", "start": 0, "end": 17, "score": 1.0}
    assert measure_metadata(MetadataConfig(), pa.array([], pa.string())).num_rows == 0


def test_metadata_that_is_no_object_is_changed_as_a_text(tmp_path: Path) -> None:
    (document,), _, _ = run(tmp_path, ["from jane.doe@mail.com"])
    assert document.metadata == "from <EMAIL_ADDRESS>"


@pytest.mark.parametrize(
    ("field", "value", "hidden"),
    [
        ("API_KEY", "f3Kq9ZpL2xWv7RtY8sBnM4cD", "f3Kq9ZpL2xWv7RtY8sBnM4cD"),
        ("secret_key", "f3Kq9ZpL2xWv7RtY8sBnM4cD", "f3Kq9ZpL2xWv7RtY8sBnM4cD"),
        ("content", "password: k9Tr4Wmz81Qp", "k9Tr4Wmz81Qp"),
        ("dotenv", "DB_PASSWORD=k9Tr4Wmz81Qp\nDEBUG=1", "k9Tr4Wmz81Qp"),
        ("phone_number", "415 555 2671", "415 555 2671"),
    ],
)
def test_a_value_is_searched_with_its_fields_name_and_without(field: str, value: str, hidden: str) -> None:
    found = measure_metadata(MetadataConfig(), pa.array([json.dumps({"meta": {field: value}})])).to_pylist()
    (finding,) = found[0]["pii_metadata"]
    assert value[finding["start"] : finding["end"]] == hidden
    assert finding["field"] == f"meta.{field}"


@pytest.mark.parametrize(
    ("metadata", "path"),
    [
        ({"phone": {"home": "415 555 2671"}}, "phone.home"),
        ({"phone": {"numbers": [{"main": "415 555 2671"}]}}, "phone.numbers[0].main"),
        ({"password": {"value": "k9Tr4Wmz81Qp"}}, "password.value"),
        ({"id": {"home": "415 555 2671"}}, None),
    ],
)
def test_a_value_is_searched_behind_every_name_of_its_path(metadata: dict[str, Any], path: str | None) -> None:
    found = measure_metadata(MetadataConfig(), pa.array([json.dumps(metadata)])).to_pylist()
    assert [(each["field"], each["start"]) for each in found[0]["pii_metadata"]] == ([(path, 0)] if path else [])
