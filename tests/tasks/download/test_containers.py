"""Archives, Arrow and MDS: the rows of files in files, and what damage, bombs and dangerous members cost."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import stat
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.estimates.sources import rows_of
from storage.errors import SourceError
from storage.shards.documents import read_ledger
from tasks.download.config import DownloadConfig, FileSource
from tasks.download.sources.containers.tar import Member, read_tar
from tasks.download.sources.files import find_files, read_file
from tasks.download.sources.rows import Refused, Row
from tests.tasks.download.made import mds
from tests.tasks.download.test_download import run, source, texts
from tests.tasks.download.test_formats import zstd

LINES = b'{"text": "one"}\n{"text": "two", "n": 2}\n'
LIMIT = 1_000_000
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
UNSAFE = {"/etc/a.txt": b"x", "../a.txt": b"x", "d/../../a.txt": b"x", "..\\a.txt": b"x", "C:\\a.txt": b"x"}


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["three"]}), sink)
    return sink.getvalue()


MEMBERS = {
    "d/a.jsonl": LINES,
    "d/a.jsonl.gz": gzip.compress(LINES, mtime=0),
    "d/b.csv": b"text,n\nfour,4\n",
    "d/c.json": b'[{"text": "five"}]',
    "d/d.txt": "sechs ü".encode(),
    "e.md.zst": zstd(b"# seven"),
    "f.parquet": parquet(),
    "picture.png": b"\x89PNG",
    "._d.txt": b"\0\5\x16\7",
}
TEXTS = ["one", "two", "one", "two", "four", "five", "sechs ü", "# seven", "three"]
PLACES = [
    "d/a.jsonl:1",
    "d/a.jsonl:2",
    "d/a.jsonl.gz:1",
    "d/a.jsonl.gz:2",
    "d/b.csv:2",
    "d/c.json row 1",
    "d/d.txt",
    "e.md.zst",
    "f.parquet row 1",
]


def entry(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar(entries: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def tarred(members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    return tar([entry(name, data) for name, data in members.items()], form)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return packed.getvalue()


def rows(folder: Path, name: str, data: bytes, limit: int = LIMIT, **more: Any) -> list[Row | Refused]:
    path = folder / name
    path.write_bytes(data)
    return list(read_file(path, name, source(path, **more), limit))


def kept(found: list[Row | Refused]) -> list[Any]:
    return [row.values.get("text") for row in found if isinstance(row, Row)]


def lost(found: list[Row | Refused]) -> list[tuple[str, str]]:
    return [(row.reason, row.place.partition("!")[2] or row.place) for row in found if isinstance(row, Refused)]


CONTAINERS: dict[str, bytes] = {
    **{f"a.{name}.tar": tarred(MEMBERS, form) for name, form in FORMATS.items()},
    "a.tar.gz": gzip.compress(tarred(MEMBERS), mtime=0),
    "a.tgz": gzip.compress(tarred(MEMBERS), mtime=0),
    "a.tar.zst": zstd(tarred(MEMBERS)),
    "a.zip": zipped(MEMBERS),
    "a.stored.zip": zipped(MEMBERS, zipfile.ZIP_STORED),
    "a.bzip2.zip": zipped(MEMBERS, zipfile.ZIP_BZIP2),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_members_are_read_as_files_of_their_names_are(name: str, tmp_path: Path) -> None:
    found = rows(tmp_path, name, CONTAINERS[name])
    good = {row.place: row.values["text"] for row in found if isinstance(row, Row)}
    assert good == {f"{name}!{place}": text for place, text in zip(PLACES, TEXTS, strict=True)}
    assert sorted(lost(found)) == [("not_read", "._d.txt"), ("not_read", "picture.png")]
    (text,) = (row for row in found if isinstance(row, Row) and row.place.endswith("d.txt"))
    assert text.values["file"] == "d.txt"


@pytest.mark.parametrize("form", FORMATS)
def test_names_and_contents_are_those_that_tarfile_finds(form: str) -> None:
    """Long names, names in other letters, sizes in binary digits, folders, links, and an archive after another."""
    long = "/".join(["folder" * 12] * 3) + "/a.txt"
    names = [
        "a.txt",
        "sub/b.txt",
        *([long, "ü/水車.txt", "x" * 101] if form != "ustar" else ["x" * 90 + "/" + "y" * 90]),
    ]
    entries = [entry(name, name.encode() * number) for number, name in enumerate(names)]
    entries += [entry("sub", type=tarfile.DIRTYPE), entry("link", type=tarfile.SYMTYPE, linkname="a.txt")]
    data = tar(entries, FORMATS[form])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        wanted = [(one.name, one.isreg(), one.size) for one in archive if not one.isdir()]
    found = [one for one in read_tar(io.BytesIO(data + data), "") if isinstance(one, Member)]
    assert [(one.name, not one.why, one.size) for one in found] == wanted * 2
    read = [one.file.read() for one in read_tar(io.BytesIO(data), "") if isinstance(one, Member)]
    assert read == [*(name.encode() * number for number, name in enumerate(names)), b""]


def test_samples_of_webdataset_are_rows(tmp_path: Path) -> None:
    members = {
        "s/000.jpg": b"jpg",
        "s/000.txt": b"A mill.",
        "s/000.json": b'{\n "url": "u",\n "text": "other"}',
        "s/001.json.gz": gzip.compress(b'{"n": 1}', mtime=0),
        "s/001.caption.txt": b"A brook.",
        "s/001.cls": b"7",
        "s/002.json": b'{"text": "alone"}',
        "v1.0.txt": b"first",
        "v1.1.txt": b"second",
        "t.json": b'[{"text": "in an array"}]',
        "t.txt": b"beside it",
        "u.json": b"{",
        "u.txt": b"beside what is broken",
        "w.txt": b"\xff",
        "w.json": b"{}",
    }
    found = rows(tmp_path, "a.tar", tarred(members))
    good = [(row.place.partition("!")[2], row.values) for row in found if isinstance(row, Row)]
    assert good == [
        ("s/000", {"url": "u", "text": "A mill.", "file": "000"}),
        ("s/001", {"n": 1, "caption": "A brook.", "file": "001"}),
        ("s/002.json:1", {"text": "alone"}),
        ("v1.0.txt", {"text": "first", "file": "v1.0.txt"}),
        ("v1.1.txt", {"text": "second", "file": "v1.1.txt"}),
        ("t.json row 1", {"text": "in an array"}),
        ("t.txt", {"text": "beside it", "file": "t.txt"}),
        ("u.txt", {"text": "beside what is broken", "file": "u.txt"}),
    ]
    assert lost(found) == [
        ("not_read", "s/000.jpg"),
        ("not_read", "s/001.cls"),
        ("broken_json", "u.json:1"),
        ("invalid_utf8", "w"),
    ]
    captions = rows(tmp_path, "a.tar", tarred(members), text_column="caption")
    assert [row.values["caption"] for row in captions if isinstance(row, Row) and "caption" in row.values][:1]


def test_dangerous_members_are_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    kinds = {"link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "pipe": tarfile.FIFOTYPE, "device": tarfile.CHRTYPE}
    entries = [entry(name, data) for name, data in UNSAFE.items()]
    entries += [entry(f"{name}.txt", type=kind, linkname="/etc/passwd") for name, kind in kinds.items()]
    sparse = entry("sparse.txt", b"x", type=tarfile.GNUTYPE_SPARSE)
    found = rows(tmp_path, "a.tar", tar([*entries, entry("good.txt", b"good")]))
    assert kept(found) == ["good"]
    assert {reason for reason, _ in lost(found)} == {"unsafe_member"}
    assert len(lost(found)) == len(UNSAFE) + len(kinds)
    assert lost(rows(tmp_path, "b.tar", tar([sparse]))) == [("unsafe_member", "sparse.txt")]
    link = zipfile.ZipInfo("link.txt")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in {**UNSAFE, "good.txt": b"good"}.items():
            archive.writestr(name, data)
        archive.writestr(link, "/etc/passwd")
    found = rows(tmp_path, "a.zip", packed.getvalue())
    assert kept(found) == ["good"]
    assert {reason for reason, _ in lost(found)} == {"unsafe_member"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar", "a.zip", "b.tar"]


def flagged(data: bytes, flag: int) -> bytes:
    """A ZIP archive whose members say that they are encrypted, say."""
    for sign, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = -1
        while (place := data.find(sign, place + 1)) >= 0:
            data = data[: place + at] + bytes([data[place + at] | flag]) + data[place + at + 1 :]
    return data


def overlapping() -> bytes:
    """Two members with the same data."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"one" * 99)
        twin = zipfile.ZipInfo("b.txt")
        first = archive.infolist()[0]
        for field in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
            setattr(twin, field, getattr(first, field))
        archive.filelist.append(twin)
    return packed.getvalue()


ZEROS = b" " * 20_000_000
BOMBS = {
    "a.zip": zipped({"good.txt": b"good", "b.txt": ZEROS}),
    "a.tgz": gzip.compress(tarred({"good.txt": b"good", "b.txt": ZEROS}), mtime=0),
    "a.tar.zst": zstd(tarred({"good.txt": b"good", "b.txt": ZEROS})),
    "inner.tar": tarred({"good.txt": b"good", "b.txt.gz": gzip.compress(ZEROS, mtime=0)}),
    "shared.zip": overlapping(),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name: str, tmp_path: Path) -> None:
    found = rows(tmp_path, name, BOMBS[name], limit=50_000_000)
    assert "bomb" in {reason for reason, _ in lost(found)}
    assert kept(found) == ([] if name == "shared.zip" else ["good"])


def test_members_that_are_encrypted_are_refused_by_name(tmp_path: Path) -> None:
    assert lost(rows(tmp_path, "a.zip", flagged(zipped({"a.txt": b"x"}), 1))) == [("encrypted", "a.txt")]


MANY = {f"{number}.txt": random.Random(number).randbytes(3000).hex().encode() for number in range(9)}


PACKED = {
    "a.tar": tarred(MANY),
    "a.tgz": gzip.compress(tarred(MANY), mtime=0),
    "a.tar.zst": zstd(tarred(MANY)),
    "a.zip": zipped(MANY),
    "stored.zip": zipped(MANY, zipfile.ZIP_STORED),
}


@pytest.mark.parametrize("name", PACKED)
def test_damage_keeps_what_was_read_and_is_named(name: str, tmp_path: Path) -> None:
    """Archives cut at every tenth, or with a wrong byte there. Of what packs them only gzip has a checksum, and ZIP
    has one for each member."""
    wanted = {text.decode() for text in MANY.values()}
    data, most = PACKED[name], 0
    for at in (len(data) * tenth // 10 for tenth in range(1, 10)):
        for cut in (True, False):
            found = rows(tmp_path, name, data[:at] if cut else data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
            good, reasons = set(kept(found)), {reason for reason, _ in lost(found)}
            assert reasons <= {"damaged_archive", "damaged_member", "invalid_utf8"}
            assert reasons or (not cut and not name.endswith(("gz", "zip")))
            if cut or name.endswith("zip"):
                assert good < wanted
            most = max(most, len(good & wanted))
    assert most >= 7


def test_after_a_damaged_header_the_next_member_is_found(tmp_path: Path) -> None:
    data = bytearray(tarred({"a.txt": b"a", "b.txt": b"b", "c.txt": b"c"}))
    data[1024] ^= 0xFF
    found = rows(tmp_path, "a.tar", bytes(data))
    assert kept(found) == ["a", "c"]
    assert lost(found) == [("damaged_archive", "a.tar offset 1024")]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:  # which takes that for the end
        assert archive.getnames() == ["a.txt"]


def counted(head: bytes) -> bytes:
    """A header of tar with its checksum."""
    return head[:148] + b"%06o\0 " % (sum(head) - sum(head[148:156]) + 8 * 32) + head[156:]


@pytest.mark.parametrize("size", [b"-0000000777", b"0000_000777", b"+0000000777"])
def test_a_size_of_tar_has_digits_only(size: bytes, tmp_path: Path) -> None:
    data = tarred({"a.txt": b"a", "b.txt": b"b"}, tarfile.USTAR_FORMAT)
    found = rows(tmp_path, "a.tar", counted(data[:124] + size + data[135:512]) + data[512:])
    assert (kept(found), lost(found)) == (["b"], [("damaged_archive", "a.tar offset 0")])


@pytest.mark.parametrize("fields", [b"9" * 5000, b"5020 size=" + b"9" * 5000 + b"\n", b"19 size=-99999999\n"])
def test_a_size_that_pax_fields_misstate_is_that_of_the_header(fields: bytes, tmp_path: Path) -> None:
    data = tarred({"fields": fields, "a.txt": b"a"}, tarfile.USTAR_FORMAT)
    found = rows(tmp_path, "a.tar", counted(data[:156] + b"x" + data[157:512]) + data[512:])
    assert (kept(found), lost(found)) == (["a"], [])


def test_a_member_that_is_not_what_its_name_says_costs_itself(tmp_path: Path) -> None:
    members = {
        "a.jsonl": gzip.compress(LINES, mtime=0),
        "b.csv": b'text\n"open',
        "c.json": b'[{"text": "before"}, ',
        "d.parquet": b"PAR1",
        "e.jsonl.gz": b"no gzip",
        "f.txt": b"\xff",
        "g.tar": tarred(MEMBERS),
        "h.txt": b"x" * 2000,
        "i.txt": b"",
        "j.jsonl": LINES,
    }
    for name, data in {"a.tar": tarred(members), "a.zip": zipped(members)}.items():
        found = rows(tmp_path, name, data, limit=1000)
        assert kept(found) == ["before", "", "one", "two"]
        assert sorted(lost(found), key=lambda one: one[1]) == [
            ("damaged_member", "a.jsonl"),
            ("damaged_member", "b.csv"),
            ("damaged_member", "c.json"),
            ("damaged_member", "d.parquet"),
            ("damaged_member", "e.jsonl.gz"),
            ("invalid_utf8", "f.txt"),
            ("not_read", "g.tar"),
            ("too_long", "h.txt"),
        ]
    whys = [row.why for row in found if isinstance(row, Refused)]
    assert whys[0] == "is gzip, not text in UTF-8 as its name says"
    assert whys[2] == "it ends within its array"


@pytest.mark.parametrize("name", ["a.tar", "a.tgz", "a.zip", "a.arrow", "a.mds"])
@pytest.mark.parametrize("data", [b"", b"no such file" * 99, bytes(100)], ids=["empty", "text", "zeros"])
def test_what_is_no_container_ends_the_run(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match="a\\."):
        run(tmp_path, source(tmp_path / name))


def test_every_member_has_a_fate_in_counts_and_ledger(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tarred({**MEMBERS, "../x.txt": b"x"}))
    out = run(tmp_path, source(tmp_path / "a.tar"), max_quarantined_share=0.5)
    assert sorted(texts(out)) == sorted(TEXTS)
    counts = out.counts["documents"]
    assert (counts["in"], counts["kept"], counts["removed"]) == (12, 9, {"not_read": 2})
    assert counts["quarantined"] == 1
    told = [(one.verdict, one.reason, one.detail) for path in out.path.glob("ledger/*") for one in read_ledger(path)]
    assert ("removed", "not_read", f"{tmp_path}/a.tar!picture.png") in told
    assert ("quarantined", "unsafe_member", f"{tmp_path}/a.tar!../x.txt: its path leads out of the archive") in told


def test_members_without_rows_count_neither_as_rows_nor_against_a_limit(tmp_path: Path) -> None:
    pictures = {f"{number}.png": b"x" for number in range(5)}
    (tmp_path / "a.tar").write_bytes(tarred({**pictures, "a.jsonl": LINES * 3}))
    assert texts(run(tmp_path, source(tmp_path / "a.tar", limit=2))) == ["one", "two"]
    (tmp_path / "b.tar").write_bytes(tarred(pictures))
    with pytest.raises(SourceError, match=r"none of its 5 members has text \(5 not_read\)"):
        run(tmp_path / "b", source(tmp_path / "b.tar"))
    pair = b'{"instruction": "Where?", "output": "Here."}\n'
    (tmp_path / "c.zip").write_bytes(zipped({**pictures, "a.jsonl": pair}))
    out = run(tmp_path / "c", source(tmp_path / "c.zip", role="instructions"))
    assert (out.counts["instructions"], out.counts["instructions_not_read"]) == (1, 5)


TABLE = pa.table({"text": [f"text {number}" for number in range(300)], "n": list(range(300))})


def arrow(stream: bool) -> bytes:
    sink = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=110)
    return sink.getvalue()


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_is_read_to_where_it_is_damaged(stream: bool, tmp_path: Path) -> None:
    data = arrow(stream)
    found = rows(tmp_path, "a.arrow", data)
    assert [row.values for row in found if isinstance(row, Row)] == TABLE.to_pylist()
    assert found[-1].place == "a.arrow row 300"
    for tenth in range(1, 10):
        cut = rows(tmp_path, "a.arrow", data[: len(data) * tenth // 10])
        assert kept(cut) in [[f"text {number}" for number in range(many)] for many in (0, 110, 220, 300)]
        if tenth < 9:
            assert [reason for reason, _ in lost(cut)] == ["damaged_archive"]
    assert lost(rows(tmp_path, "a.arrow", arrow(stream=True)[:-8])) == [("damaged_archive", "a.arrow row 301")]
    wrong = bytearray(data)
    for place in range(0, len(data), 53):
        wrong[place] ^= 0xFF
        with contextlib.suppress(SourceError):
            rows(tmp_path, "a.arrow", bytes(wrong))
        wrong[place] ^= 0xFF


def test_a_folder_that_datasets_saves_is_read(tmp_path: Path) -> None:
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    Dataset(TABLE).save_to_disk(str(tmp_path / "saved"), num_shards=2)
    out = run(tmp_path, source(tmp_path / "saved" / "*.arrow"))
    assert texts(out) == TABLE["text"].to_pylist()


@pytest.mark.parametrize("name", ["shard.00000.mds", "shard.00000.mds.zstd"])
def test_samples_of_mds_are_rows_and_nothing_is_unpickled(name: str, tmp_path: Path) -> None:
    data = mds(9)
    found = rows(tmp_path, name, zstd(data) if name.endswith("zstd") else data)
    assert [row.place for row in found] == [f"{name} row {number}" for number in range(1, 10)]
    third = found[2]
    assert isinstance(third, Row)
    assert third.values["text"] == "text 2"
    assert [third.values[name] for name in "nfjpu"] == [-2, 1.0, {"a": [2]}, b"cos\nsystem\n", 2]
    assert str(third.values["d"]) == "1.10"


def test_a_cut_or_wrong_shard_of_mds_names_each_row_that_is_lost(tmp_path: Path) -> None:
    data = mds(9)
    found = rows(tmp_path, "a.mds", data[:-20])
    assert kept(found) == [f"text {number}" for number in range(8)]
    assert lost(found) == [("damaged_archive", "a.mds row 9")]
    assert len(rows(tmp_path, "a.mds", data[: 4 * 11 + 300])) == 9
    for at in range(0, len(data), 7):
        wrong = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        with contextlib.suppress(SourceError):
            assert len(rows(tmp_path, "a.mds", wrong)) == 9
    assert lost(rows(tmp_path, "a.mds", data, limit=10))[0] == ("too_long", "a.mds row 1")


def test_a_shard_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"shard.0000{number}.mds").write_bytes(mds(2))
    named = [{"raw_data": {"basename": f"shard.0000{number}.mds"}} for number in range(3)]
    (tmp_path / "index.json").write_text(json.dumps({"shards": named}))
    with pytest.raises(SourceError, match=r"names 3 shards, of which 1 aren't .*\(first shard.00002.mds\)"):
        find_files(source(tmp_path / "*"))
    (tmp_path / "index.json").write_text(json.dumps({"shards": named[:2]}))
    assert [path.suffix for path in find_files(source(tmp_path / "*"))] == [".mds", ".mds"]
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(SourceError, match="isn't an index of MDS"):
        find_files(source(tmp_path / "*"))


def test_a_plan_expects_about_the_rows_of_archives(tmp_path: Path) -> None:
    data = {f"{number}.jsonl": LINES * 50 for number in range(10)}
    (tmp_path / "a.tar").write_bytes(tarred(data))
    (tmp_path / "a.arrow").write_bytes(arrow(stream=True))
    (tmp_path / "a.mds").write_bytes(mds(9))
    for path, number in ((tmp_path / "a.tar", 1000), (tmp_path / "a.arrow", 300), (tmp_path / "a.mds", 9)):
        config = DownloadConfig(sources=[FileSource(name="x", paths=[str(path)])])
        assert rows_of(config)["documents"].number == pytest.approx(number, rel=0.7)
