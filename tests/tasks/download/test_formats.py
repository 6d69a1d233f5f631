"""Tables, packed texts, nested metadata: what every format keeps, and what each says of a file that is broken."""

from __future__ import annotations

import base64
import codecs
import gzip
import io
import json
import math
import struct
import tarfile
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from storage.errors import SourceError
from storage.shards.documents import Document, read_documents, read_ledger
from tasks.download.config import FileSource
from tasks.download.sources.files import read_file
from tasks.download.sources.metadata import NotKept, to_json
from tasks.download.sources.parquet import read_parquet
from tasks.download.sources.rows import Row
from tasks.stage.output import Output
from tests.tasks.download.test_download import GOOD, lines, run, source, texts


def documents(out: Output) -> list[Document]:
    return [document for path in sorted(out.path.glob("documents/*")) for document in read_documents(path)]


def metadata(out: Output) -> list[dict[str, Any]]:
    return [json.loads(document.metadata) for document in documents(out)]


def refused(out: Output) -> list[tuple[str, str]]:
    found = [verdict for path in out.path.glob("ledger/*") for verdict in read_ledger(path)]
    return [(verdict.reason, verdict.detail.rpartition("/")[2]) for verdict in found]


def tar(data: bytes) -> bytes:
    with io.BytesIO() as packed, tarfile.open(fileobj=packed, mode="w") as file:
        member = tarfile.TarInfo("a.jsonl")
        member.size = len(data)
        file.addfile(member, io.BytesIO(data))
        file.close()
        return packed.getvalue()


def zstd_long(data: bytes) -> bytes:
    """A frame with a window of 2 GB, as --long=31 makes: RFC 8878, a single raw block."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(31 - 10) << 3]) + (len(data) << 3 | 1).to_bytes(3, "little") + data


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def parquet(bits: int = 64, **columns: pa.Array) -> bytes:
    """A Parquet file, perhaps with wider integers in Arrow's own schema in it, as Polars writes those of 128 bits."""
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    file = sink.getvalue()
    told = pq.read_metadata(io.BytesIO(file)).metadata[b"ARROW:schema"]
    widened = base64.b64decode(told).replace(struct.pack("<i", 64), struct.pack("<i", bits))
    return file.replace(told, base64.b64encode(widened))


def packed_as(ending: str, data: bytes) -> bytes:
    return gzip.compress(data) if ending == ".gz" else zstd(data) if ending == ".zst" else data


TABLE = 'id,text,note\n1,"One, with ""quotes""\nand a second line.",\n\n2,5" disks are old.,x\r\n3,"Ünder,",y'
WANTED = [
    ('One, with "quotes"\nand a second line.', {"id": "1", "note": ""}),
    ('5" disks are old.', {"id": "2", "note": "x"}),
    ("Ünder,", {"id": "3", "note": "y"}),
]


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolons"])
def test_a_table_has_a_document_a_row(kind: str, packed: str, tmp_path: Path) -> None:
    delimiter = {"csv": ",", "tsv": "\t", "semicolons": ";"}[kind]
    outside = True
    data = ""
    for character in TABLE.replace('5" disks', "5^ disks"):
        outside ^= character == '"'
        data += delimiter if character == "," and outside else character
    path = tmp_path / f"data.{'tsv' if kind == 'tsv' else 'csv'}{packed}"
    path.write_bytes(packed_as(packed, codecs.BOM_UTF8 + data.replace("^", '"').encode()))
    out = run(tmp_path, source(path, delimiter=";") if kind == "semicolons" else source(path))
    assert [*zip(texts(out), metadata(out), strict=True)] == WANTED


def test_quotes_of_a_table_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "data.tsv").write_text('text\tn\n"Well," he said\t1\n"Open\t2\n')
    assert texts(run(tmp_path, source(tmp_path / "data.tsv", quotes=False))) == ['"Well," he said', '"Open']
    with pytest.raises(SourceError, match="the quote that opens in the row of line 3 is not closed") as caught:
        run(tmp_path / "again", source(tmp_path / "data.tsv"))
    assert "quotes: false" in caught.value.remedy


def test_a_bad_row_of_a_table_is_named_by_its_line_and_the_rest_goes_on(tmp_path: Path) -> None:
    rows = [
        b"n,text",
        b'1,"two\nlines"',
        b"2,one,too many",
        b"3",
        b"4,caf\xe9",
        b"5,a\0b",
        b'6,"' + b"x\n" * 900 + b'"',
        b"7,a\rb",
        b"8,  ",
        b"9,last",
    ]
    (tmp_path / "data.csv").write_bytes(b"\n".join(rows))
    out = run(tmp_path, source(tmp_path / "data.csv"), max_quarantined_share=0.9, max_document_bytes=1000)
    assert texts(out) == ["two\nlines", "last"]
    assert [(reason, place.partition(":")[2]) for reason, place in refused(out)] == [
        ("wrong_columns", "4: 3 fields, but the header has 2"),
        ("wrong_columns", "5: 1 fields, but the header has 2"),
        ("invalid_utf8", "6"),
        ("nul", "7"),
        ("too_long", "8"),
        ("broken_row", "909: a carriage return outside quotes"),
        ("empty", "910"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "said", "remedy"),
    [
        ("a.csv", b"a;text\n1;x\n", "lack the column text .*: a;text", "Set delimiter of the source, perhaps to ';'"),
        ("a.csv", b"text,text\na,b\n", "two columns text", "Correct it"),
        ("a.csv", b"text,n\rgood,1\rgood,2\r", "its lines end with a carriage return only", "Correct it"),
        ("a.csv", b"text,n\n", "is empty", "Check its paths"),
        ("a.csv", b"", "is empty", "Check its paths"),
        ("a.jsonl", b'{"text": "a"}\r{"text": "b"}\r', "its lines end with a carriage return only", "Correct them"),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16"), "is UTF-16, not text in UTF-8", "iconv -f UTF-16"),
        ("a.jsonl", '{"text": "a"}\n'.encode("utf-16-le"), "is UTF-16", "iconv -f UTF-16"),
        ("a.csv", "text\na\n".encode("utf-32"), "is UTF-32", "iconv -f UTF-32"),
        ("a.json", '[{"text": "a"}]\n'.encode("utf-16-be"), "is UTF-16", "iconv"),
        ("a.txt", "text".encode("utf-16"), "invalid_utf8, it is UTF-16", "Correct them"),
        ("a.jsonl", gzip.compress(b'{"text": "a"}\n', mtime=0), "is gzip", "Give it the extension of what it is"),
        ("a.csv", zstd(b"text\na\n"), "is Zstandard", "Give it the extension"),
        ("a.jsonl.gz", b'{"text": "a"}\n', "Not a gzipped file", "Replace the file"),
        ("a.txt.gz", gzip.compress(b"text " * 999, mtime=0)[:-9], "can't be read", "Replace the file"),
        ("a.csv.zst", zstd(b"text\n" + b"word\n" * 999)[:-9], "can't be read", "Replace the file"),
        ("a.jsonl", b'{"content": "a"}\n', "lack the column text .*: content", "perhaps content"),
        (
            "a.jsonl",
            b'{"meta": {"text": "a", "n": 1}}\n',
            "lack the column text .*: meta.text, meta.n",
            "perhaps meta.text",
        ),
        ("a.jsonl", b'{"txt": "a", "n": 1}\n', "lack the column text .*: txt, n", "perhaps txt"),
        ("a.jsonl", b'{"text": {"body": "a"}}\n', "text is an object with body; text_column may be a path", "Correct"),
        ("a.parquet", b"PAR1", "is not a Parquet file", "Replace it"),
        ("a.jsonl.gz", gzip.compress(tar(b'{"text": "a"}\n'), mtime=0), "is a tar archive", "Give it the extension"),
        ("a.csv.zst", zstd(tar(b"text\na\n")), "is a tar archive", "Give it the extension"),
        ("a.jsonl", tar(b'{"text": "a"}\n'), "is a tar archive", "Give it the extension"),
        ("a.txt.gz", gzip.compress(tar(b"a"), mtime=0), "is a tar archive", "Give it the extension"),
        ("a.json", b"PK\x03\x04 and so on", "is a ZIP archive", "Give it the extension"),
        ("a.jsonl", b"\xfd7zXZ\x00 and so on", "is xz", "Unpack it"),
        ("a.jsonl.zst", zstd_long(b'{"text": "a"}\n'), "a window of more than 128 MB", "zstd -dc --long=31 a"),
        ("a.txt.zst", zstd_long(b"a"), "a window of more than 128 MB", "Compress it again"),
        ("a.parquet", parquet(text=pa.array([b"a"])), "no_text, text is binary", "Correct them"),
        ("a.parquet", parquet(text=pa.array([[b"a"]])), "no_text, text is a list", "Correct them"),
        ("a.parquet", parquet(text=pa.array([7])), "no_text, text is a number", "Correct them"),
        (
            "a.parquet",
            parquet(text=pa.array(["a"]), n=pa.array([7], pa.int64()), bits=128),
            "more than 64 bits",
            "Write the column in another type",
        ),
    ],
)
def test_a_file_that_cant_be_read_says_what_it_is_and_what_to_do(
    name: str, content: bytes, said: str, remedy: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=said) as caught:
        run(tmp_path, source(tmp_path / name))
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_a_text_may_be_packed_and_is_limited_as_it_is_unpacked(packed: str, tmp_path: Path) -> None:
    (tmp_path / f"a.txt{packed}").write_bytes(packed_as(packed, b"A text."))
    (tmp_path / f"b.md{packed}").write_bytes(packed_as(packed, b"x" * 2000))
    config = FileSource(name="mine", paths=[str(tmp_path / f"*{packed or '.[tm]*'}")])
    out = run(tmp_path, config, max_quarantined_share=0.5, max_document_bytes=1000)
    assert (texts(out), refused(out)) == (["A text."], [("too_long", f"b.md{packed}")])


def test_the_text_may_stand_within_a_column(tmp_path: Path) -> None:
    rows = [
        {"content": {"text": GOOD[0], "n": 1}},
        {"content": {"text": GOOD[1]}},
        {"content.text": GOOD[2], "content": 2},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = run(tmp_path, source(tmp_path / "a.jsonl", text_column="content.text"))
    assert texts(out) == GOOD[:3]
    assert metadata(out) == [{"content": {"n": 1}}, {}, {"content": 2}]
    pq.write_table(pa.table({"content": [{"text": GOOD[3], "n": 1}]}), tmp_path / "b.parquet")
    out = run(tmp_path / "b", source(tmp_path / "b.parquet", text_column="content.text"))
    assert (texts(out), metadata(out)) == ([GOOD[3]], [{"content": {"n": 1}}])


def test_nested_metadata_is_kept_as_it_is(tmp_path: Path) -> None:
    pile: dict[str, Any] = {"meta": {"url": "https://a.org", "sets": [{"name": "Pile-CC"}]}, "tags": ["a", None, 1.5]}
    dolma = {
        "id": "7",
        "source": "cc",
        "added": "2024-01-01",
        "created": None,
        "metadata": {"length": 3},
        "version": {},
    }
    rows = [{"text": text, **more} for text, more in zip(GOOD, (pile, dolma), strict=False)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = run(tmp_path, source(tmp_path / "a.jsonl"))
    assert metadata(out) == [pile, dolma]
    assert {document.source for document in documents(out)} == {"mine"}
    assert "metadata_dropped" not in out.counts


def test_values_of_parquet_are_json_or_counted(tmp_path: Path) -> None:
    when = datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone(timedelta(hours=2)))
    columns = {
        "zoned": pa.array([when], pa.timestamp("us", tz="+02:00")),
        "plain": pa.array([datetime(2024, 5, 6)], pa.timestamp("ms")),
        "nanoseconds": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")),
        "day": pa.array([date(2024, 5, 6)]),
        "price": pa.array([Decimal("12.30")]),
        "took": pa.array([timedelta(seconds=90)]),
        "tags": pa.array([["a", "b"]]),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"raw": b"\x00", "n": 1}]),
        "raws": pa.array([[b"\x00", None]]),
        "image": pa.array([b"\x00\x01"]),
    }
    pq.write_table(pa.table({"text": GOOD[:1], **columns}), tmp_path / "a.parquet")
    out = run(tmp_path, source(tmp_path / "a.parquet"))
    assert metadata(out) == [
        {
            "zoned": "2024-05-06T07:08:09+02:00",
            "plain": "2024-05-06T00:00:00",
            "nanoseconds": "2023-11-14T22:13:20.123456789",
            "day": "2024-05-06",
            "price": "12.30",
            "took": 90.0,
            "tags": ["a", "b"],
            "map": {"k": 1},
            "struct": {"n": 1},
            "raws": [None, None],
        }
    ]
    assert out.counts["metadata_dropped"] == 3
    told = [{"source": "mine", "field": name, "why": "binary", "rows": 1} for name in ("image", "raws", "struct")]
    assert out.counts["tables"]["Metadata left out"] == told


MOST = 2**63 - 1
INT64 = pa.int64()
DAYS = [datetime(1, 1, 1), datetime(1600, 5, 6), datetime(2024, 1, 1, 12, 0, 0, 1), datetime(9999, 12, 31)]
SAID = ["0001-01-01T00:00:00", "1600-05-06T00:00:00", "2024-01-01T12:00:00.000001", "9999-12-31T00:00:00"]


def times(kind: pa.DataType, *values: int) -> pa.Array:
    """An array of a type whose values are counted in 32 or 64 bits."""
    return pa.array(values, pa.int32() if kind.bit_width == 32 else INT64).view(kind)


def nested(values: pa.Array) -> dict[str, pa.Array]:
    """Two values in a list, a mapping and an object each."""
    return {
        "list": pa.ListArray.from_arrays([0, 2], values),
        "map": pa.MapArray.from_arrays([0, 2], pa.array(["a", "b"]), values),
        "object": pa.StructArray.from_arrays([values[:1], values[1:], pa.array(["x"])], ["a", "b", "c"]),
    }


OUT = None, "unreadable"  # left out, and counted
BINARY = None, "binary"
NO_NUMBER = None, "not a finite number"
KINDS: dict[str, tuple[pa.Array, list[Any]]] = {
    **{f"int{bits}": (pa.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], f"int{bits}"),
                      [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1]) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (pa.array([0, 2**bits - 1], f"uint{bits}"), [0, 2**bits - 1]) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (pa.array([most, math.inf, math.nan], f"float{bits}"), [most, NO_NUMBER, NO_NUMBER])
       for bits, most in ((16, 65504.0), (32, 2.0**127), (64, 1.7976931348623157e308))},
    "bool": (pa.array([True, False, None]), [True, False, None]),
    "null": (pa.nulls(2), [None, None]),
    **{str(kind): (pa.array(["", "é" * 40, None], kind), ["", "é" * 40, None])
       for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()))},
    **{str(kind): (pa.array([b"", b"\xff", None], kind), [BINARY, BINARY, None])
       for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed": (pa.array([b"a\xff"], pa.binary(2)), [BINARY]),
    **{f"decimal{bits}": (pa.array([Decimal("9" * digits), Decimal("-" + "9" * digits)], kind(digits)),
                          ["9" * digits, "-" + "9" * digits])
       for bits, digits, kind in ((32, 9, pa.decimal32), (64, 18, pa.decimal64), (128, 38, pa.decimal128),
                                  (256, 76, pa.decimal256))},
    "decimal of fractions": (pa.array([Decimal("0.000")], pa.decimal128(5, 3)), ["0.000"]),
    **{f"timestamp[{unit}]": (times(pa.timestamp(unit), -MOST, MOST, 0), [OUT, OUT, "1970-01-01T00:00:00"])
       for unit in ("ms", "us")},
    "timestamp[ns]": (times(pa.timestamp("ns"), -MOST, MOST, 0),
                      ["1677-09-21T00:12:43.145224193", "2262-04-11T23:47:16.854775807", "1970-01-01T00:00:00"]),
    "zoned": (times(pa.timestamp("us", "Europe/Berlin"), -MOST, MOST, 0), [OUT, OUT, "1970-01-01T01:00:00+01:00"]),
    "zoned[ns]": (times(pa.timestamp("ns", "+05:30"), MOST, 0),
                  ["2262-04-12T05:17:16.854775807+05:30", "1970-01-01T05:30:00+05:30"]),
    "zone that nobody knows": (times(pa.timestamp("us", "Mars/Olympus"), 0, 1), [OUT, OUT]),
    "date32": (times(pa.date32(), -(2**31), 2**31 - 1, 0, 2_932_896), [OUT, OUT, "1970-01-01", "9999-12-31"]),
    "date64": (times(pa.date64(), -(10**9) * 86_400_000, 0), [OUT, "1970-01-01"]),
    "time32[s]": (times(pa.time32("s"), 0, 86_399), ["00:00:00", "23:59:59"]),
    "time32[ms]": (times(pa.time32("ms"), 86_399_999, 86_400_000, -1), ["23:59:59.999000", OUT, OUT]),
    "time64[us]": (times(pa.time64("us"), 86_399_999_999, MOST, -1), ["23:59:59.999999", OUT, OUT]),
    "time64[ns]": (times(pa.time64("ns"), 1, 86_399_999_999_999), ["00:00:00.000000001", "23:59:59.999999999"]),
    **{f"duration[{unit}]": (times(pa.duration(unit), MOST, 0), [OUT, 0.0]) for unit in ("s", "ms")},
    "duration[us]": (times(pa.duration("us"), 90_000_000, -1), [90.0, -1e-06]),
    "duration[ns]": (times(pa.duration("ns"), 90_000_000_000, 0), [90.0, 0.0]),
    **{f"{name} of times": (array, [said]) for (name, array), said in zip(
        nested(times(pa.timestamp("us"), 0, MOST)).items(),
        ((["1970-01-01T00:00:00", None], "unreadable"), ({"a": "1970-01-01T00:00:00"}, "unreadable"),
         ({"a": "1970-01-01T00:00:00", "c": "x"}, "unreadable")), strict=True)},
    "large list": (pa.array([[1], [], None], pa.large_list(INT64)), [[1], [], None]),
    "list view": (pa.array([[1], [], None], pa.list_view(INT64)), [[1], [], None]),
    "fixed list": (pa.array([[1, 2], None], pa.list_(INT64, 2)), [[1, 2], None]),
    "map": (pa.array([[("a", 1)], [("a", 1), ("a", 2)], []], pa.map_(pa.string(), INT64)),
            [{"a": 1}, [["a", 1], ["a", 2]], {}]),
    "map by number": (pa.array([[(1, 1)]], pa.map_(INT64, INT64)), [{"1": 1}]),
    "map by object": (pa.array([[({"k": 1}, 2)]], pa.map_(pa.struct([("k", INT64)]), INT64)), [[[{"k": 1}, 2]]]),
    "map by bytes": (pa.array([[(b"a", 2)]], pa.map_(pa.binary(), INT64)), [({}, "binary")]),
    "map by day": (pa.MapArray.from_arrays([0, 1], times(pa.date32(), 0), pa.array([1])), [{"1970-01-01": 1}]),
    "map beside an unreadable date": (
        pa.StructArray.from_arrays(
            [times(pa.date32(), 2**31 - 1), pa.array([[("a", 1)]], pa.map_(pa.string(), INT64))], ["day", "map"]),
        [({"map": {"a": 1}}, "unreadable")]),
    "uuid": (pa.array([b"a" * 16, None], pa.uuid()), ["61616161-6161-6161-6161-616161616161", None]),
    "json": (pa.array(['{"a": 1}'], pa.json_()), ['{"a": 1}']),
    "bool8": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0], pa.int8())), [True, False]),
    "opaque": (pa.ExtensionArray.from_storage(pa.opaque(pa.binary(), "t", "v"), pa.array([b"a"])), [BINARY]),
    "tensor": (pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(INT64, [2]),
                                              pa.array([[1, 2]], pa.list_(INT64, 2))), [[1, 2]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_of_arrow_is_read_or_left_out_and_counted(kind: str, tmp_path: Path) -> None:
    array, wanted = KINDS[kind]
    pq.write_table(pa.table({"text": ["a"] * len(array), "v": array}), tmp_path / "a.parquet")
    found = []
    for row in read_parquet(tmp_path / "a.parquet", "a"):
        assert isinstance(row, Row)
        dropped: Counter[NotKept] = Counter()
        kept = to_json({"v": row.values["v"]}, 10_000, "mine", dropped)
        found.append((kept.get("v"), *(what.why for what in dropped)) if dropped else kept["v"])
    assert found == wanted
    assert json.loads(json.dumps(found)) == [[*one] if isinstance(one, tuple) else one for one in wanted]


@pytest.mark.parametrize("stored", [True, False])
def test_timestamps_of_96_bits_have_their_years(stored: bool, tmp_path: Path) -> None:
    days = pa.array(DAYS, pa.timestamp("us"))
    table = pa.table({"text": ["a"] * 4, "day": days, "days": pa.array([[day] for day in DAYS], pa.list_(days.type))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=stored)
    rows = [row.values for row in read_parquet(tmp_path / "a.parquet", "a") if isinstance(row, Row)]
    assert [row["day"].isoformat() for row in rows] == SAID
    assert [row["days"] for row in rows] == [[day] for day in DAYS]


def test_of_metadata_that_is_too_large_or_too_deep_the_rest_is_kept(tmp_path: Path) -> None:
    deep: Any = "end"
    for _ in range(40):
        deep = [deep]
    rows = [{"text": GOOD[0], "html": "x" * 900, "url": "u" * 50, "id": 1}, {"text": GOOD[1], "deep": deep, "id": 2}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = run(tmp_path, source(tmp_path / "a.jsonl"), max_metadata_bytes=200)
    assert metadata(out) == [{"url": "u" * 50, "id": 1}, {"id": 2}]
    told = out.counts["tables"]["Metadata left out"]
    assert [(row["field"], row["why"]) for row in told] == [("deep", "nested too deep"), ("html", "too large")]


def test_odd_json_is_read_or_refused_by_line(tmp_path: Path) -> None:
    bad = [
        b'{"text": "a", "n": ' + b"9" * 5000 + b"}",
        b'{"text": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b"\x00" * 9,
    ]
    good = [
        b'{"text": "old", "text": "new"}',
        b'{"text": "n", "big": ' + b"9" * 400 + b"}",
        b'{"text": "i", "x": -Infinity}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\r\n".join([*good, *bad]) + b"\n" + lines(GOOD[:1]))
    (tmp_path / "b.jsonl").mkdir()
    out = run(tmp_path, source(tmp_path / "*.jsonl"), max_quarantined_share=0.9)
    assert texts(out) == ["new", "n", "i", GOOD[0]]
    assert [reason for reason, _ in refused(out)] == ["broken_json", "nested_too_deep", "broken_json"]
    assert metadata(out)[1:3] == [{"big": int("9" * 400)}, {"x": None}]


def test_numbers_have_all_their_digits_at_any_depth(tmp_path: Path) -> None:
    numbers = f"{2**64}, {-(2**63) - 1}, {10**30}, {2**63}, 1e19, 0.1, -0, -0.0, 5E-324"
    deep = '{"a": ' * 40 + str(2**64) + "}" * 40
    rows = [f'{{"text": "{name}", "n": {value}}}' for name, value in (("w", f'[{{"m": [{numbers}]}}]'), ("d", deep))]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    read = list(read_file(tmp_path / "a.jsonl", "a", source(tmp_path / "a.jsonl"), 10_000))
    assert [repr(row.values) for row in read if isinstance(row, Row)] == [repr(json.loads(row)) for row in rows]


def test_numbers_that_json_has_no_form_for_are_null_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"text": GOOD[0], "x": float("nan"), "list": [1.5, float("-inf"), float("inf")], "y": 0.5})
        + "\n"
        + json.dumps({"text": GOOD[1], "x": float("inf"), "y": None})
    )
    out = run(tmp_path, source(tmp_path / "a.jsonl"))
    assert metadata(out) == [{"x": None, "list": [1.5, None, None], "y": 0.5}, {"x": None, "y": None}]
    assert out.counts["metadata_dropped"] == 3
    assert out.counts["tables"]["Metadata left out"] == [
        {"source": "mine", "field": "x", "why": "not a finite number", "rows": 2},
        {"source": "mine", "field": "list", "why": "not a finite number", "rows": 1},
    ]


def test_a_delimiter_is_one_character_of_ascii() -> None:
    for delimiter in ("", "ab", '"', "\n", "ü"):
        with pytest.raises(ValidationError, match="delimiter"):
            FileSource(name="mine", paths=["a.csv"], delimiter=delimiter)


def test_there_may_be_no_benchmarks(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(GOOD))
    out = run(tmp_path, source(tmp_path / "a.jsonl"), benchmarks=[])
    assert [path.name for path in (out.path / "benchmarks").iterdir()] == ["none.json"]


def test_a_path_that_exists_is_no_pattern(tmp_path: Path) -> None:
    (tmp_path / "b[1].jsonl").write_bytes(lines(GOOD))
    assert sorted(texts(run(tmp_path / "out", source(tmp_path / "b[1].jsonl")))) == sorted(GOOD)
