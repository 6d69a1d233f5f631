"""A task of the harness is prepared once: its data, its questions, its definition. It gets nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError, DamagedArtifact, SourceError
from tasks.harness.config import HarnessSource
from tasks.harness.data import saved, serving
from tasks.harness.definitions import _index, definition_digest, families, manager_of
from tasks.harness.fingerprint import fingerprint
from tasks.harness.prepare import _read, prepare
from tests.tasks.harness.made import choices, sources
from tests.tasks.tiny_model import write_rows


def test_data_and_questions_of_a_task(tmp_path: Path) -> None:
    source = sources(tmp_path)["arc_easy"]
    questions = prepare(source, tmp_path / "benchmarks" / "arc_easy", tmp_path / "scratch")
    assert questions[1] == {
        "id": "1",
        "query": "Question: Where does the hen live?\nAnswer:",
        "gold": 1,
        "choices": [f" in the {place}" for place in ("wood", "yard", "tree", "house")],
    }
    assert len((tmp_path / "benchmarks" / "arc_easy.jsonl").read_text().splitlines()) == len(choices())
    about = json.loads((tmp_path / "benchmarks" / "arc_easy" / "task.json").read_text())
    assert about["tasks"] == {"arc_easy": {"version": 1.0, "output": "multiple_choice", "questions": 9}}
    load = saved(tmp_path / "benchmarks" / "arc_easy" / "data")
    with serving(load):
        task = manager_of("arc_easy").load(["arc_easy"])["tasks"]["arc_easy"]
    assert list(task.eval_docs) == choices()
    with pytest.raises(SourceError, match="requests the data set openai/gsm8k, main, which was not prepared"):
        load("openai/gsm8k", "main")


def test_the_harness_finds_its_data_again_when_the_block_is_left() -> None:
    import datasets

    before = datasets.load_dataset
    with serving(lambda path, name: {}):
        assert datasets.load_dataset("anything") == {}
    assert datasets.load_dataset is before


@pytest.mark.soak
def test_a_group_is_asked_for_the_tasks_whose_files_there_are(tmp_path: Path) -> None:
    for name in ("causative", "passive_2"):
        write_rows(tmp_path / f"{name}.jsonl", [{"sentence_good": f"{name} good.", "sentence_bad": f"{name} bad."}])
    files = {"train": str(tmp_path / "{subset}.jsonl")}
    some = HarnessSource(task="blimp", only=["blimp_causative", "blimp_passive_2"], files=files)
    questions = prepare(some, tmp_path / "out" / "blimp", tmp_path / "scratch")
    assert [row["id"] for row in questions] == ["blimp_causative/0", "blimp_passive_2/0"]
    assert [row["choices"] for row in questions] == [
        [" causative good.", " causative bad."],
        [" passive_2 good.", " passive_2 bad."],
    ]
    assert [row["gold"] for row in questions] == [0, 0]
    with pytest.raises(SourceError, match=r"blimp reads .*adjunct_island\.jsonl, and no such file exists"):
        prepare(HarnessSource(task="blimp", files=files), tmp_path / "all" / "blimp", tmp_path / "scratch")


def test_a_definition_of_ones_own_goes_with_its_data(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "word.yaml").write_text(
        "task: my_word\ndataset_path: nowhere/at_all\noutput_type: multiple_choice\ntest_split: test\n"
        "doc_to_text: !function how.ask\ndoc_to_choice: '{{options}}'\ndoc_to_target: right\n"
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n"
    )
    (folder / "how.py").write_text("def ask(doc):\n    return 'Which? ' + doc['about']\n")
    write_rows(tmp_path / "mine.jsonl", [{"about": "hens", "options": ["lay", "read"], "right": 0}])
    source = HarnessSource(task="my_word", folder=str(folder), files={"test": str(tmp_path / "mine.jsonl")})
    (question,) = prepare(source, tmp_path / "out" / "my_word", tmp_path / "scratch")
    assert question == {"id": "0", "query": "Which? hens", "choices": [" lay", " read"], "gold": 0}
    assert (tmp_path / "out" / "my_word" / "definition" / "how.py").is_file()
    first = fingerprint(source)
    (folder / "how.py").write_text("def ask(doc):\n    return 'What? ' + doc['about']\n")
    second = fingerprint(source)
    assert first["harness my_word test"] == second["harness my_word test"]
    assert first["harness my_word definition"] != second["harness my_word definition"]


def test_columns_that_files_lack_are_made_of_those_that_they_have(tmp_path: Path) -> None:
    rows = [{"context": "a fox in the", "continuation": " wood", "number": 2}]
    write_rows(tmp_path / "rows.jsonl", rows)
    made = HarnessSource(
        task="lambada_openai",
        files={"test": str(tmp_path / "rows.jsonl")},
        columns={"text": "{{context}}{{continuation}}"},
    )
    (question,) = prepare(made, tmp_path / "out" / "lambada_openai", tmp_path / "scratch")
    assert question["query"] + question["choices"][0] == "a fox in the wood"


def test_a_text_that_looks_like_a_number_stays_one(tmp_path: Path) -> None:
    rows = [{"word": word, "n": 2, "list": "['a']"} for word in ("42", "None", "[1]", "hen")]
    write_rows(tmp_path / "rows.jsonl", rows)
    columns = {"text": "{{word}}", "both": "{{word}}{{n}}", "number": "{{n + 1}}", "listed": "{{[word, list]}}"}
    path = str(tmp_path / "rows.jsonl")
    made = _read(HarnessSource(task="x", files={"test": path}, columns=columns), path, None, tmp_path)
    assert made["text"] == ["42", "None", "[1]", "hen"]
    assert made["both"] == ["422", "None2", "[1]2", "hen2"]
    assert made["number"] == [3, 3, 3, 3]
    assert made["listed"][0] == ["42", "['a']"]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz"])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["NA", "null", "NaN", "None", "n/a", "#N/A", "<NA>", "NULL", "-inf", ""], None),
        (["TRUE", "false"], None),
        (["True", "False"], [True, False]),
        (["007", "7"], None),
        (["+7", "1_000", "1e5", " 7"], None),
        (["7", "-12"], [7, -12]),
        (["99999999999999999999"], None),
        (["1.50", "2.0"], None),
        (["1.5", "2.0"], [1.5, 2.0]),
        (["1", ""], None),
        (["2026-11-27", "12:30"], None),
    ],
)
def test_tables_are_read_as_they_are_written(tmp_path: Path, ending: str, written: list[str], read: Any) -> None:
    path, delimiter = tmp_path / f"rows{ending}", "\t" if ".tsv" in ending else ","
    lines = [f"{delimiter}answer", *(f'"q, {number}"{delimiter}{value}' for number, value in enumerate(written))]
    table = "\ufeff" + "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(table.encode()) if ending.endswith(".gz") else table.encode())
    made = _read(HarnessSource(task="x", files={"test": str(path)}), str(path), None, tmp_path)
    assert made.to_dict() == {
        "Unnamed: 0": [f"q, {number}" for number in range(len(written))],
        "answer": written if read is None else read,
    }


def test_questions_of_tables_keep_answers_that_stand_for_nothing_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer\nISO code of Namibia?,NA\nNothing in SQL?,null\n")
    files = dict.fromkeys(("train", "test"), str(tmp_path / "rows.csv"))
    questions = prepare(HarnessSource(task="gsm8k", files=files), tmp_path / "out" / "gsm8k", tmp_path / "scratch")
    assert [question["choices"] for question in questions] == [[" NA"], [" null"]]


BAD: dict[str, Any] = {
    "not JSON": "{",
    "empty": "",
    "a list": "[1, 2]\n",
    "other columns": '{"a": 1}\n',
    "a number": "3\n",
    "no answer": '{"id": "1", "question": "?", "choices": {"text": ["x"], "label": ["A"]}, "answerKey": "Z"}\n',
    "binary": "\x00\x01\x02",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(BAD[kind])
    files = dict.fromkeys(("train", "validation", "test"), str(path))
    with pytest.raises(SourceError) as raised:
        prepare(HarnessSource(task="arc_easy", files=files), tmp_path / "out" / "arc_easy", tmp_path / "scratch")
    assert "arc_easy" in raised.value.message or "bad.jsonl" in raised.value.message


def test_a_column_that_the_definition_names_is_there_or_the_task_is_refused(tmp_path: Path) -> None:
    """The harness would take its name for every right answer."""
    rows = [{"question": "is it so", "passage": "It is so.", "answer": True}]
    write_rows(tmp_path / "boolq.jsonl", rows)
    files = dict.fromkeys(("train", "validation"), str(tmp_path / "boolq.jsonl"))
    with pytest.raises(
        SourceError, match=r"lack the column label, which its doc_to_target reads\. Columns: question, p"
    ):
        prepare(HarnessSource(task="boolq", files=files), tmp_path / "out" / "boolq", tmp_path / "scratch")
    made = HarnessSource(task="boolq", files=files, columns={"label": "{{answer | int}}"})
    (question,) = prepare(made, tmp_path / "out" / "boolq", tmp_path / "scratch")
    assert (question["choices"], question["gold"]) == ([" no", " yes"], 1)


@pytest.mark.parametrize("right", [-1, 2])
def test_hidden_answers_are_no_answers(tmp_path: Path, right: int) -> None:
    rows = [{"question": "is it so", "passage": "It is so.", "label": label} for label in (1, 0, right)]
    write_rows(tmp_path / "boolq.jsonl", rows)
    files = dict.fromkeys(("train", "validation"), str(tmp_path / "boolq.jsonl"))
    with pytest.raises(SourceError, match=f"question 2 of the task boolq is {right}, which isn't among its 2"):
        prepare(HarnessSource(task="boolq", files=files), tmp_path / "out" / "boolq", tmp_path / "scratch")


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    whole = json.dumps({"question": "?", "answer": "#### 1"}).encode() + b"\n"
    bad = {
        "empty.jsonl": (b"", r"empty\.jsonl is empty"),
        "short.jsonl.gz": (gzip.compress(whole * 99)[:-20], r"short\.jsonl\.gz can't be read: Compressed file ended"),
        "latin.jsonl": (
            whole + '{"question": "é", "answer": "#### 1"}\n'.encode("latin-1"),
            r"latin\.jsonl can't be r",
        ),
    }
    (tmp_path / "whole.jsonl").write_bytes(whole)
    for name, (content, said) in bad.items():
        (tmp_path / name).write_bytes(content)
        files = {"train": str(tmp_path / "whole.jsonl"), "test": str(tmp_path / name)}
        with pytest.raises(SourceError, match=said):
            prepare(HarnessSource(task="gsm8k", files=files), tmp_path / "out" / "gsm8k", tmp_path / "scratch")
    alone = HarnessSource(task="gsm8k", files={"train": str(tmp_path / "whole.jsonl")})
    with pytest.raises(SourceError, match="reads the split test, and has files only for train") as raised:
        prepare(alone, tmp_path / "out" / "gsm8k", tmp_path / "scratch")
    assert "Add test" in raised.value.remedy
    only = HarnessSource(task="blimp", only=["blimp_nothing"], files={"train": str(tmp_path / "whole.jsonl")})
    with pytest.raises(ConfigError, match=r"blimp doesn't have a task blimp_nothing\. Its tasks: blimp"):
        prepare(only, tmp_path / "out" / "blimp", tmp_path / "scratch")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('no luck')\n", r"RuntimeError no luck \(how\.py, line 1\)"),
        ("def rows(data):\n    return 1 // 0\n", r"ZeroDivisionError .* \(how\.py, line 2\)"),
        ("import sys\nsys.exit(0)\n", r"SystemExit 0 \(how\.py, line 2\)"),  # or the run ends as if all were well
        ("def rows(data:\n", r"SyntaxError .*\(how\.py, line 1\)"),
    ],
)
def test_code_of_a_definition_that_fails_is_an_error_with_its_line(tmp_path: Path, code: str, said: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "task.yaml").write_text(
        "task: mine\ndataset_path: nowhere/at_all\noutput_type: generate_until\ntest_split: test\n"
        "process_docs: !function how.rows\ndoc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\n"
    )
    (folder / "how.py").write_text(code)
    write_rows(tmp_path / "mine.jsonl", [{"question": "?", "answer": "1"}])
    source = HarnessSource(task="mine", folder=str(folder), files={"test": str(tmp_path / "mine.jsonl")})
    with pytest.raises(ConfigError, match=f"The code of the task mine fails: {said}"):
        prepare(source, tmp_path / "out" / "mine", tmp_path / "scratch")


def test_names_that_there_are_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"doesn't have a task hellaswagg\.") as raised:
        families("hellaswagg")
    assert "lm-eval ls tasks" in raised.value.remedy
    with pytest.raises(ConfigError, match=r"doesn't have a task hellasw\.") as raised:
        families("hellasw")
    assert "hellaswag" in raised.value.remedy
    with pytest.raises(ConfigError, match=r"No file of .* defines a task mine. Tasks defined there: none"):
        manager_of("mine", tmp_path)
    with pytest.raises(ValueError, match="neither files nor a revision"):
        HarnessSource(task="arc_easy")
    with pytest.raises(SourceError, match="no such file exists"):
        fingerprint(HarnessSource(task="arc_easy", files={"test": str(tmp_path / "none.jsonl")}))


@pytest.mark.soak
def test_groups_and_tags_are_found_in_their_folders() -> None:
    expected = {
        "mmlu": "mmlu",
        "blimp": "blimp",
        "ai2_arc": "arc",
        "boolq": "super_glue",
        "mmlu_anatomy": "mmlu",
        "mmlu_stem_tasks": "mmlu",  # whose keys are quoted
        "arc_multilingual": "okapi",
        "xquad": "xquad",  # whose tag is in what they include
    }
    assert {name: [path.name for path in families(name)] for name in expected} == {
        name: [folder] for name, folder in expected.items()
    }
    assert definition_digest("arc_easy") == definition_digest("arc_challenge") != definition_digest("boolq")


@pytest.mark.soak
def test_every_name_of_the_harness_is_found() -> None:
    from lm_eval.tasks import TaskManager

    assert [name for name in TaskManager().all_tasks if name not in _index()] == []


def test_a_flipped_byte_in_prepared_data_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "out" / "wikitext"
    prepare(sources(tmp_path)["wikitext"], folder, tmp_path / "scratch")
    (folder / "data" / "index.json").write_text("[{}]")
    with pytest.raises(DamagedArtifact, match=r"index\.json can't be read"):
        saved(folder / "data")
    prepare(sources(tmp_path)["wikitext"], folder, tmp_path / "scratch")
    path = folder / "data" / "0" / "test.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    load = saved(folder / "data")
    with pytest.raises(DamagedArtifact, match="can't be read"):
        load("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1")
