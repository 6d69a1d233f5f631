"""Prepares the data of a task of lm-evaluation-harness once, and its questions for the contamination check."""

from __future__ import annotations

import functools
import json
import lzma
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import ConfigError, SourceError
from storage.shards.lines import write_json_lines
from tasks.harness.answers import check_columns, check_right
from tasks.harness.code import sandboxed_code_eval
from tasks.harness.config import HarnessSource
from tasks.harness.data import Load, Splits, save, serving
from tasks.harness.definitions import installed, manager_of, reads_sentences, runs_programs, some
from tasks.harness.failures import failures_named
from tasks.harness.fingerprint import SUBSET, files_of
from tasks.harness.sentences import SENTENCES, copy_sentences, repeatable_detector, with_sentences
from tasks.sandbox import SandboxConfig

if TYPE_CHECKING:
    from datasets import Dataset
    from lm_eval.api.task import Task

DATA, DEFINITION, ABOUT = "data", "definition", "task.json"
BUILDERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
PACKED = (".gz", ".zst", ".xz", ".bz2")


def prepare(source: HarnessSource, folder: Path, scratch: Path) -> list[dict[str, Any]]:
    """Write data/, task.json, definition/ if the profile gives it as a folder, and sentences/ if the task's code splits
    sentences. Returns the questions as rows of a benchmark: {"id", "query", "choices", "gold"}. For a task without
    options, the right answer is the only choice.

    Raises ConfigError for an unknown task and for failing code, SourceError for data that are missing or not what the
    task needs.
    """
    defined = Path(source.folder).expanduser() if source.folder else None
    folder.mkdir(parents=True, exist_ok=True)
    data_sets: dict[tuple[str, str | None], Splits] = {}
    load = _from_files(source, scratch) if source.files else _from_hub(source)

    def remember(path: str, name: str | None) -> Splits:
        if (path, name) not in data_sets:
            data_sets[path, name] = load(path, name)
        return data_sets[path, name]

    if reads_sentences(source.task, defined):
        copy_sentences(folder / SENTENCES)
    with serving(remember), _without_bars(), what_code_needs(source.task, folder, defined, SandboxConfig()):
        manager = manager_of(source.task, defined)
        _check_only(source, manager.all_tasks)
        with failures_named(source.task, defined):
            leaves = manager.load([*(source.only or [source.task])])["tasks"]
            questions = [row for name, task in leaves.items() for row in _questions(source, name, task)]
        save(_used_splits(data_sets, leaves), folder / DATA)
    if defined is not None:
        shutil.copytree(defined, folder / DEFINITION, ignore=shutil.ignore_patterns("__pycache__"))
    about = {
        "task": source.task,
        "only": source.only,
        "harness": installed(),
        "tasks": {
            name: {"version": task.VERSION, "output": task.OUTPUT_TYPE, "questions": len(task.eval_docs)}
            for name, task in leaves.items()
        },
    }
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    write_json_lines(folder.parent / f"{source.name}.jsonl", questions)
    return questions


def _questions(source: HarnessSource, name: str, task: Task) -> list[dict[str, Any]]:
    """A task's questions and answers, as it writes them: for the contamination check to look for, not to ask a
    model."""
    check_columns(name, task)
    rows = []
    for number, row in enumerate(task.eval_docs):
        query, answer = task.doc_to_text(row), task.doc_to_target(row)
        choices = task.doc_to_choice(row) if task.OUTPUT_TYPE == "multiple_choice" else None
        if choices is not None and task.config.process_results is None:  # otherwise the task's code decides
            check_right(name, number, query if isinstance(query, int) else answer, choices)
        if isinstance(query, int) and choices:  # as in WinoGrande, whose choices precede the question
            query, answer, choices = choices[query], answer if isinstance(answer, str) else "", None
        if choices and isinstance(answer, str) and choices.count(answer) == 1:
            answer = choices.index(answer)
        if not choices or not isinstance(answer, int):
            choices, answer = [" ".join(map(str, answer)) if isinstance(answer, list) else answer], 0
        identity = f"{number}" if name == source.task else f"{name}/{number}"
        listed = [f" {str(choice).lstrip()}" for choice in choices]
        rows.append({"id": identity, "query": str(query), "choices": listed, "gold": int(answer)})
    if not rows:
        raise SourceError(f"The task {name} doesn't have any questions.", "Check its files.")
    return rows


def _check_only(source: HarnessSource, known: Sequence[str]) -> None:
    missing = [name for name in source.only or () if name not in known]
    if missing:
        raise ConfigError(
            f"{source.task} doesn't have a task {', '.join(missing)}. Its tasks: {some(known)}.",
            "Correct `only` of the task.",
        )


@contextmanager
def what_code_needs(task: str, folder: Path, defined: Path | None, sandbox: SandboxConfig) -> Iterator[None]:
    """Within the block, the code of a task can be imported and run: in a sandbox if it runs programs, which it may do
    on import, and with the sentence model in `folder`, if any."""
    with ExitStack() as stack:
        stack.enter_context(repeatable_detector())
        if runs_programs(task, defined):
            stack.enter_context(sandboxed_code_eval(sandbox))
        if (folder / SENTENCES).is_dir():
            stack.enter_context(with_sentences(folder / SENTENCES))
        yield


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hides the progress bars of `datasets`, as the stage has its own."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


def _used_splits(
    data_sets: Mapping[tuple[str, str | None], Splits], leaves: Mapping[str, Task]
) -> dict[tuple[str, str | None], Splits]:
    """The data sets with only the splits that a task reads."""
    used = {
        split
        for task in leaves.values()
        for split in (
            task.config.training_split,
            task.config.validation_split,
            task.config.test_split,
            task.config.fewshot_split,
        )
    }
    return {key: {split: rows for split, rows in splits.items() if split in used} for key, splits in data_sets.items()}


def _from_files(source: HarnessSource, scratch: Path) -> Load:
    def load(path: str, name: str | None) -> Splits:
        from datasets import DatasetDict

        class LocalSplits(DatasetDict):  # type: ignore[misc]  # of a package without types
            """The splits of `files`."""

            def __missing__(self, split: str) -> Dataset:
                raise SourceError(
                    f"The task {source.task} reads the split {split}, and has files only for {', '.join(self)}.",
                    f"Add {split} to download.harness.files of {source.task}. The harness opens the split of the "
                    "examples even if it shows none: then the files of another split will do.",
                )

        return LocalSplits(
            {split: _read(source, pattern, name, scratch) for split, pattern in (source.files or {}).items()}
        )

    return load


def _read(source: HarnessSource, pattern: str, subset: str | None, scratch: Path) -> Dataset:
    """The rows of a split. Raises SourceError for files that are missing or can't be read."""
    from datasets.exceptions import DatasetGenerationError
    from datasets.load import load_dataset  # not the one that `serving` replaces

    location = pattern.replace(SUBSET, subset or "")
    files = [str(path) for path in files_of(location)]
    if not files:
        raise SourceError(
            f"The task {source.task} reads {location}, and no such file exists.",
            "Correct download.harness, or list under `only` the tasks of the group whose files you have.",
        )
    suffixes = [suffix for suffix in Path(files[0]).suffixes if suffix not in PACKED]
    builder = BUILDERS.get(suffixes[-1] if suffixes else "")
    if builder is None:
        raise SourceError(
            f"A task can't read files such as {files[0]}.", f"Use {', '.join(BUILDERS)}, also compressed."
        )

    def loaded(**options: Any) -> Dataset:
        return load_dataset(builder, data_files=files, split="train", cache_dir=str(scratch), **options)

    try:
        rows = _table(loaded, "\t" if suffixes[-1] == ".tsv" else ",") if builder == "csv" else loaded()
        rows.data.validate(full=True)  # text that is not UTF-8
    except StopIteration as error:
        raise SourceError(f"{files[0]} is empty.", "Replace the file.") from error
    except (
        DatasetGenerationError,
        ValueError,
        NotImplementedError,
        OSError,
        EOFError,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        cause = str(error.__cause__ or error).rstrip(".")
        raise SourceError(f"{files[0]} can't be read: {cause}.", "Fix or replace the file.") from error
    return _renamed(rows, source.columns) if source.columns else rows


def _table(loaded: Callable[..., Dataset], delimiter: str) -> Dataset:
    """The rows of tables as they are written: pandas would read `NA` and `null` as missing, `TRUE` as True and `007` as
    7. A column becomes numbers or booleans only if Python would write each of its values that way."""
    from datasets import Features, Value

    header = loaded(delimiter=delimiter, keep_default_na=False, header=None, nrows=1)[0]
    names = [str(name) or f"Unnamed: {place}" for place, name in enumerate(header.values())]  # as pandas calls it
    texts = Features(dict.fromkeys(names, Value("string")))
    rows = loaded(delimiter=delimiter, keep_default_na=False, header=0, column_names=names, features=texts)
    for name in names:
        kind = next((kind for kind, is_so in _WRITTEN.items() if all(map(is_so, rows[name]))), None)
        rows = rows.cast_column(name, Value(kind)) if kind else rows
    return rows


def _is_number(read: Callable[[str], float], text: str | None) -> bool:
    try:
        return text is not None and str(read(text)) == text
    except ValueError:
        return False


_WRITTEN: Mapping[str, Callable[[str | None], bool]] = {
    "int64": lambda text: _is_number(int, text) and -(2**63) <= int(text or 0) < 2**63,
    "float64": functools.partial(_is_number, float),
    "bool": {"True", "False"}.__contains__,
}


def _renamed(rows: Dataset, columns: Mapping[str, str]) -> Dataset:
    """Adds columns made by Jinja templates over a row's columns, written as in a definition. `row` has all columns,
    for names that aren't identifiers in Jinja."""
    from jinja2 import StrictUndefined
    from jinja2.nativetypes import NativeEnvironment, NativeTemplate
    from jinja2.sandbox import SandboxedEnvironment

    class Native(SandboxedEnvironment, NativeEnvironment):
        """Keeps lists and numbers as they are."""

    class Template(NativeTemplate):
        """Keeps texts as texts: Jinja's own template would turn `42` into a number."""

        def render(self, *arguments: Any, **options: Any) -> Any:
            parts = [*self.root_render_func(self.new_context(dict(*arguments, **options)))]
            return parts[0] if len(parts) == 1 else "".join(map(str, parts))

    Native.template_class = Template
    environment = Native(undefined=StrictUndefined)
    templates = {name: environment.from_string(template) for name, template in columns.items()}
    return rows.map(lambda row: {name: template.render({"row": row, **row}) for name, template in templates.items()})


def _from_hub(source: HarnessSource) -> Load:
    def load(path: str, name: str | None) -> Splits:
        from datasets.load import load_dataset

        if source.revision is None:
            raise ConfigError(
                f"The task {source.task} takes its data from the hub's data set {path}, and the profile gives no "
                "revision of it.",
                "Set `revision` in download.harness to its commit, or `files` to local copies.",
            )
        data: Splits = load_dataset(source.dataset or path, name, revision=source.revision)
        return data

    return load
