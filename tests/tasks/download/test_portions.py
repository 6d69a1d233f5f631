"""Files read in portions: the same documents and places, however files are divided and whoever reads them."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.digests import list_files, tree_digest
from storage.errors import SourceError
from storage.shards.documents import read_documents, read_ledger
from tasks.download.config import DownloadConfig, FileSource
from tasks.download.portions import Portion, Span, _in_file, _lines, _rows, portions, spans
from tasks.download.sources.files import read_rows
from tasks.download.sources.remote import Politeness
from tasks.download.sources.rows import Refused, Row
from tasks.download.stage import download
from tasks.download.web.sections import Reach
from tasks.stage.output import Output
from tests.runtimes import runtime_of

LINES = st.sampled_from(
    [b"", b"  ", b"{", b'{"text": "a"}', b'{"text": "\xc3\xa9", "n": 1}', b"\xff", b'{"text": "%s"}' % (b"x" * 90)]
)


SOURCE = FileSource(name="mine", paths=["*"])


def config_of(source: FileSource, **more: object) -> DownloadConfig:
    return DownloadConfig.model_validate({"sources": [source.model_dump()], "benchmarks": ["piqa"], **more})


def portioned(source: FileSource, size: int) -> list[Portion]:
    return portions(source, spans(source, Politeness()), size)


def rows_of(span: Span, source: FileSource, config: DownloadConfig) -> list[Row | Refused]:
    return list(_rows(span, source, config, Path(), Politeness(), Reach(), Counter()))


@given(
    st.lists(LINES, max_size=12), st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.booleans(), st.integers(1, 150)
)
def test_wherever_a_file_is_divided_its_rows_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ending: bytes, ended: bool, mark: bool, size: int
) -> None:
    path = tmp_path_factory.mktemp("portions") / "a.jsonl"
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + ending.join(lines) + (ending if ended else b""))
    source = FileSource(name="mine", paths=[str(path)])
    config = config_of(source, max_document_bytes=60)
    found: list[Row | Refused] = []
    before = 0
    for (span,) in portioned(source, size):
        rows = rows_of(span, source, config)
        if span.end is not None:
            rows = [_in_file(row, before) for row in rows]  # type: ignore[arg-type]
            before += _lines(span)
        found += rows
    assert found == list(read_rows(source, 60))


def test_large_files_are_divided_if_they_can_be_and_small_ones_share_a_portion(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("x" * 40)
    (tmp_path / "b.csv").write_text("text\n" + "y\n" * 500)
    (tmp_path / "c.jsonl").write_text('{"text": "z"}\n' * 40)
    source = FileSource(name="mine", paths=[str(tmp_path / "*")])
    found = [[(span.path.name, span.start, span.end) for span in portion] for portion in portioned(source, 100)]
    assert found[-2:] == [[("c.jsonl", 0, 400)], [("c.jsonl", 400, 800)]]
    whole = [f"{number}.txt" for number in range(5)] + ["b.csv"]
    assert [one for portion in found[:-2] for one in portion] == [(name, 0, None) for name in whole]
    limited = source.model_copy(update={"limit": 3})
    assert [len(portion) for portion in portioned(limited, 100)] == [7]


def test_a_file_that_is_added_changes_few_portions() -> None:
    def of(numbers: range, *more: int) -> set[Portion]:
        names = sorted([*(f"{number:04}.txt" for number in numbers), *(f"{number:04}+.txt" for number in more)])
        return set(portions(SOURCE, [Span(Path(name), name, 100, 0) for name in names], 1000))

    before = of(range(1000))
    changed = [len(of(range(1000), at) - before) for at in range(0, 1000, 20)]
    assert max(len(portion) for portion in before) <= 40
    assert 40 <= len(before) <= 70
    assert sum(changed) <= 1.5 * len(changed)
    assert len(of(range(1, 1000)) - before) <= 2


def test_the_number_of_workers_changes_no_byte(tmp_path: Path) -> None:
    digests = set()
    path = tmp_path / "a.jsonl"
    bad = {3: "{", 200: '{"other": 1}', 399: '{"text": ""}'}
    rows = [bad.get(number) or json.dumps({"text": f"Document {number}. " * 9}) for number in range(400)]
    path.write_text("\n".join(rows))
    source = FileSource(name="mine / yours", paths=[str(path)])
    config = config_of(source, shard_bytes=4000, max_quarantined_share=0.1)
    for executor, workers in (("auto", 1), ("thread", 3), ("process", 2)):
        out = Output.at(tmp_path / executor, runtime=runtime_of(workers=workers, executor=executor))
        download.function(config, out)
        digests.add(tree_digest(list_files(out.path)))
        ledger = [row for shard in sorted((out.path / "ledger").iterdir()) for row in read_ledger(shard)]
        places = sorted(int(row.detail.split(":")[1]) for row in ledger)
        assert places == [4, 201, 400]
        read = [document for shard in sorted((out.path / "documents").iterdir()) for document in read_documents(shard)]
        assert [document.text for document in read] == [json.loads(r)["text"] for r in rows if r not in bad.values()]
    assert len(digests) == 1


def test_a_file_that_is_another_than_the_run_began_with_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n')
    source = FileSource(name="mine", paths=[str(path)])
    ((span,),) = portioned(source, 100)
    os.utime(path, (1, 1))
    said = r"a\.jsonl on .* is not the file that the run began with"
    with pytest.raises(SourceError, match=said):
        rows_of(span, source, config_of(source))
    path.unlink()
    with pytest.raises(SourceError, match=said):
        _lines(span._replace(end=5))


def test_a_line_without_end_is_skipped_once(tmp_path: Path) -> None:
    """Later portions look for the line feed no further than to their own end."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 1000 + b'\n{"text": "a"}\n')
    source = FileSource(name="mine", paths=[str(path)])
    config = config_of(source, max_document_bytes=16)
    kinds = Counter(type(row).__name__ for (span,) in portioned(source, 100) for row in rows_of(span, source, config))
    assert kinds == {"Refused": 1, "Row": 1}


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
@pytest.mark.parametrize(("more", "kind"), [(0, Row), (1, Refused)])
def test_the_end_of_a_line_does_not_count(tmp_path: Path, ending: str, more: int, kind: type) -> None:
    path = tmp_path / "a.jsonl"
    line = json.dumps({"text": "x" * 50})
    path.write_text(line + ending, newline="")
    (row,) = read_rows(FileSource(name="mine", paths=[str(path)]), len(line) - more)
    assert isinstance(row, kind)
