"""Every door by which bytes come in: each reads its input as the product does, from files where that reads files.

`seeds` are inputs that are in order, from which others are made; `words` are what the format treats specially.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import os
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage.errors import BadDocument, GristmillError
from tests.tasks.download.archives import arc, html, http, packed, page, warc
from tests.tasks.download.made import HEAD, TAIL, mds
from tests.tasks.download.made import page as wiki_page
from tests.tasks.download.papers import SCAN, column, docx, epub, mail, odt, paragraph, pdf, pptx, shape


@dataclass(frozen=True)
class Door:
    """One way in."""

    name: str
    read: Callable[[bytes, Path], None]
    seeds: Callable[[], list[bytes]]
    words: Sequence[bytes] = ()


DOORS: dict[str, Door] = {}


def door(name: str, seeds: Callable[[], list[bytes]], *words: bytes) -> Callable[[Callable[[bytes, Path], None]], None]:
    """Enter a function as the door of this name."""

    def enter(read: Callable[[bytes, Path], None]) -> None:
        DOORS[name] = Door(name, read, functools.cache(seeds), words)

    return enter


def written(data: bytes, path: Path) -> Path:
    """The path, with these bytes in it, in a file of its own: an earlier one may still be mapped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def each(*calls: Callable[[], object]) -> None:
    """Call all of them: an error that a user can act on keeps none of the others from being asked."""
    for call in calls:
        with suppress(GristmillError):
            call()


def as_json(*values: object) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def as_lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


# --- what a user writes -------------------------------------------------------------------------------------------

YAML = (
    b"&a [*a]",
    b"*a",
    b"<<: *a",
    b"!!python/object:os.system",
    b"!!binary x",
    b"? ",
    b": ",
    b"- ",
    b"\t",
    b"2026-13-01",
)
PROFILES = Path(__file__).parents[2] / "profiles"


@door("profile", lambda: [path.read_bytes() for path in sorted(PROFILES.glob("*.yaml"))], *YAML, b"extends: ", b"null")
def _profile(data: bytes, folder: Path) -> None:
    from profiles.load import load

    load(str(written(data, folder / "mine.yaml")))


SETTINGS = [b"filter.toxicity.max_score=0.5", b"name=x", b"download.sources=[{kind: files, name: a, paths: [b]}]"]


@door("set", lambda: [*SETTINGS, b"runtime.data.workers=2", b"dedup=null"], *YAML, b"=", b".", b"..", b"[", b"{")
def _set(data: bytes, folder: Path) -> None:
    from profiles.load import load

    load("smoke", [os.fsdecode(data)])  # as the command line has it


@door(
    "faults", lambda: [b"oom@5,hang:1@20,kill:1@30,nan@40!", b"full@20"], b"@", b":", b"!", "²".encode(), "٣".encode()
)
def _faults(data: bytes, folder: Path) -> None:
    from tasks.training.recovery.fault_injection import parse_faults

    parse_faults(os.fsdecode(data))


@door("hostfile", lambda: [b"# ours\nnode-1 slots=8\nnode-2 slots=4\n"], b" slots=", b"#", "²".encode(), "٣".encode())
def _hostfile(data: bytes, folder: Path) -> None:
    from tasks.children.hosts import read_hostfile

    read_hostfile(str(written(data, folder / "hostfile")))


# --- what a server answers ----------------------------------------------------------------------------------------


@door(
    "completion",
    lambda: as_json(
        {
            "choices": [{"message": {"content": "é"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        }
    ),
    b"null",
    b"[]",
    b"{}",
    b"1e999",
    b"\\ud800",
)
def _completion(data: bytes, folder: Path) -> None:
    from tasks.endpoint.client import read_completion
    from tasks.endpoint.paid import PaidAnswers

    answer = read_completion(data)
    PaidAnswers(folder / "answers.jsonl").keep("asked", answer)
    assert PaidAnswers(folder / "answers.jsonl").get("asked") == answer


PROMPT = {"role": "user", "content": "Why é?"}


@door("prompts", lambda: as_json({"id": "a", "messages": [PROMPT]}, {"prompt": "Why?"}), b"null", b"\\ud800")
def _prompts(data: bytes, folder: Path) -> None:
    from storage.shards.lines import write_json_lines
    from tasks.evaluate.side_by_side.config import PromptsConfig
    from tasks.evaluate.side_by_side.prompts import read_prompts

    path = written(data, folder / "prompts.jsonl")
    write_json_lines(folder / "again.jsonl", read_prompts(PromptsConfig(file=str(path))))


VOTE = {"question": "a", "voter": "me", "left": "x", "right": "y"}


@door("votes", lambda: as_json({**VOTE, "choice": "left"}, {**VOTE, "choice": None}), b"null", b"tie", b"\n")
def _votes(data: bytes, folder: Path) -> None:
    from tasks.evaluate.votes.ballot import Ballot, load_questions, read_votes

    row = {"id": "a", "prompt": [PROMPT], "answers": {"x": "one", "y": "two"}}
    written(json.dumps(row).encode(), folder / "answers.jsonl")
    path = written(data, folder / "votes.jsonl")
    each(lambda: read_votes(path))
    ballot = Ballot(load_questions(folder)[0], path, "me")
    before = len(read_votes(path))
    assert ballot.vote(ballot.questions[0].key, "tie")
    assert len(read_votes(path)) == before + 1


@door("answers", lambda: as_json({"id": "a", "prompt": [PROMPT], "answers": {"x": "one", "y": "two"}}), b"null", b"{}")
def _answers(data: bytes, folder: Path) -> None:
    from tasks.evaluate.votes.ballot import Ballot, load_questions
    from tasks.evaluate.votes.page import page

    written(data, folder / "answers.jsonl")
    assert "<script>alert" not in page(Ballot(load_questions(folder)[0], folder / "votes.jsonl", "me"), "t", "n")


# --- the store ----------------------------------------------------------------------------------------------------


def _manifests() -> list[bytes]:
    from storage.digests import FileEntry, tree_digest
    from storage.keys import KeyPayload
    from storage.manifest import InputRef, Manifest

    payload = KeyPayload(stage="dedup", version=1, config={"threshold": 0.8, "text": "é"}, inputs={"raw": "0" * 64})
    files = {"a/b.txt": FileEntry(sha256="0" * 64, size=4)}
    manifest = Manifest(
        key=payload.key(),
        payload=payload,
        digest=tree_digest(files),
        files=files,
        created="2026-01-01T00:00:00",
        origins={"raw": InputRef(location="download/0")},
        counts={"summary": "x", "tables": []},
    )
    text = manifest.to_json()
    return [
        text.encode(),
        json.dumps({key: value for key, value in json.loads(text).items() if key != "checksum"}).encode(),
    ]


@door("manifest", _manifests, b"../", b"\\", b'"format": 2')
def _manifest(data: bytes, folder: Path) -> None:
    from storage import inspect, maintain
    from storage.manifest import Manifest
    from storage.store import Store

    store = Store(str(folder / "store"))
    store.begin()
    manifest = Manifest.from_json(_manifests()[0], "dedup/x")
    location = f"dedup/{manifest.key}"
    written(data, store.local / "artifacts" / location / "manifest.json")
    each(
        lambda: Manifest.from_json(data, location),
        lambda: inspect.verify(store, location),
        lambda: list(inspect.lineage(store, store.twin(location))),
        lambda: maintain.find_garbage(store, keep_last=1),
        lambda: store.find("dedup", manifest.key),
    )


REFS = [
    [{"location": "dedup/0", "digest": "0" * 64, "time": "2026"}],
    [{"location": "a/b.2", "digest": "", "time": ""}] * 2,
]


@door("ref", lambda: as_json(*REFS), b"../", b"@")
def _ref(data: bytes, folder: Path) -> None:
    from storage import inspect, maintain, refs
    from storage.store import Store

    store = Store(str(folder / "store"))
    store.begin()
    written(data, store.local / "refs" / "tiny" / "dedup.json")
    each(
        lambda: inspect.verify_refs(store),
        lambda: maintain.find_garbage(store, keep_last=1),
        lambda: refs.move(store, "tiny/dedup", "dedup/0", "0" * 64),
        lambda: refs.resolve(store, "tiny/dedup@1"),
    )


@door("store", lambda: as_json({"format": 1}, {"format": 2}))
def _store(data: bytes, folder: Path) -> None:
    from storage.store import Store

    written(data, folder / "store" / "gristmill.json")
    Store(str(folder / "store"))


@functools.cache
def _remembered() -> bytes:
    import tempfile

    from storage.digest_cache import remember

    with tempfile.TemporaryDirectory() as folder:
        path = written(b"x", Path(folder, "x"))
        remember({path: "0" * 64}, Path(folder, "cache"))
        return Path(folder, "cache").read_bytes()


@door("remembered", lambda: [_remembered()])
def _read_remembered(data: bytes, folder: Path) -> None:
    from storage.digest_cache import remember, remembered_digest

    path = written(b"text", folder / "file")
    cache = written(data, folder / "digests.sqlite")
    remembered_digest(path, cache)
    remember({path: "0" * 64}, cache)


@door("lease", lambda: [b"dedup/0123\nfilter/4567\n", b""])
def _lease(data: bytes, folder: Path) -> None:
    from storage import leases
    from storage.files import locks
    from storage.store import Store

    store = Store(str(folder / "store"))
    store.begin()
    with locks.hold(path := store.local / leases.FOLDER / "1-x"):
        path.write_bytes(data)
        with leases.deletion(store):
            pass


# --- documents and rows -------------------------------------------------------------------------------------------


def _shards() -> list[bytes]:
    import tempfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    from storage.shards.documents import Document, Verdict, write_documents, write_ledger

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = [Document.new(f"text {number} é😀", "a", n=number) for number in range(20)]
        write_documents(folder / "1", documents)
        write_ledger(folder / "2", [Verdict("0" * 32, "a", "removed", "short", 1.0, 2.0, "x")] * 3)
        table = pa.table({name: [getattr(document, name) for document in documents] for name in Document._fields})
        pq.write_table(table, folder / "3", compression="none", use_dictionary=False)
        return [path.read_bytes() for path in sorted(folder.iterdir())]


@door("documents", _shards, b"PAR1")
def _documents(data: bytes, folder: Path) -> None:
    from storage.shards.documents import count_rows, read_batches, read_documents, read_ledger
    from tasks.text.scan import Scanner

    path = written(data, folder / "documents" / "00000.parquet")
    scanner = Scanner()
    each(
        lambda: count_rows(path),
        lambda: list(read_documents(path)),
        lambda: list(read_ledger(path)),
        lambda: [list(scanner.scan(batch["text"])) for _, batch in read_batches(path, ["text"])],
    )


@door("explain", _shards, b"PAR1")
def _explain(data: bytes, folder: Path) -> None:
    from flows.commands.documents.explain import find, story

    for name in ("documents", "ledger"):
        written(data, folder / name / "00000.parquet")
    each(lambda: story(find(folder, "0000"), "0" * 32))


CHUNKED, ZSTD = "Transfer-Encoding: chunked", b"\x28\xb5\x2f\xfd"
MESSAGES = [{"role": "user", "content": "Hi é"}, {"role": "assistant", "content": "Hello"}]
PAIRS = [
    {"messages": MESSAGES},
    {"instruction": "Add", "input": "1 2", "output": "3"},
    {"prompt": "Hi", "chosen": "Hello", "rejected": "No"},
    {"prompt": MESSAGES[:1], "chosen": MESSAGES, "rejected": [{"role": "assistant", "content": "No"}]},
    {"instruction": "Add", "output": "3", "system": "Be", "history": [["Q", "A"]]},
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "tools": "[]"},
    {"messages": [MESSAGES[0], {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
    {
        "message_tree_id": "1",
        "prompt": {"role": "prompter", "text": "Hi", "replies": [{"role": "assistant", "rank": 0}]},
    },
    {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello", "rejected": "\n\nHuman: Hi\n\nAssistant: No"},
    {"conversations": MESSAGES[:1], "chosen": MESSAGES[1], "rejected": {"from": "gpt", "value": "No"}},
]
LINES = [
    as_lines({"text": "one é"}, {"text": "two", "n": 1}, {"other": 1}),
    as_lines(*PAIRS),
    b"\xef\xbb\xbf" + as_lines({"text": "x"}),
]


def _source(data: bytes, folder: Path, ending: str) -> None:
    from tasks.download.config import FileSource
    from tasks.download.pairs import instruction, preference
    from tasks.download.sources.files import fingerprint, read_rows, text_of
    from tasks.download.sources.rows import Row

    path = written(data, folder / f"source{ending}")
    source = FileSource(name="source", paths=[str(path)])
    fingerprint(source)
    for row in read_rows(source, 4096):
        if isinstance(row, Row):
            for take in (instruction, preference, lambda values, _: text_of(values, "text", 4096)):
                try:
                    json.dumps(take(row.values, "source"), default=str).encode()
                except BadDocument:
                    continue


def _zstd(data: bytes) -> bytes:
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
        stream.flush()
        return sink.getvalue()


door("jsonl", lambda: LINES, b'"text"', b"\\ud800", b"NaN", b"1e999")(functools.partial(_source, ending=".jsonl"))
door("json", lambda: as_json(PAIRS, [{"text": "one"}, 2]), b"[", b"]", b"},")(
    functools.partial(_source, ending=".json")
)
door("gz", lambda: [gzip.compress(data, mtime=0) for data in LINES])(functools.partial(_source, ending=".jsonl.gz"))
door("zst", lambda: [_zstd(data) for data in LINES])(functools.partial(_source, ending=".jsonl.zst"))
door("parquet", _shards, b"PAR1")(functools.partial(_source, ending=".parquet"))
door("txt", lambda: ["A text é\n".encode()])(functools.partial(_source, ending=".txt"))


def _members() -> dict[str, bytes]:
    return {
        "a.jsonl": LINES[0],
        "1.txt": b"one",
        "1.json": b'{"n": 1}',
        "b.csv": b"text\nx\n",
        "c.gz": b"",
        "../d.md": b"x",
    }


def _zipped() -> list[bytes]:
    made = [io.BytesIO() for _ in range(2)]
    for sink, method in zip(made, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), strict=True):
        with zipfile.ZipFile(sink, "w", method) as archive:
            for name, data in _members().items():
                archive.writestr(zipfile.ZipInfo(name), data, method)
    return [sink.getvalue() for sink in made]


def _tarred() -> list[bytes]:
    made = [io.BytesIO() for _ in range(2)]
    for sink, form in zip(made, (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT), strict=True):
        with tarfile.open(fileobj=sink, mode="w", format=form) as archive:
            for name, data in {**_members(), "x" * 120 + ".txt": b"long"}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return [sink.getvalue() for sink in made]


def _arrow() -> list[bytes]:
    import pyarrow as pa

    table = pa.table({"text": ["one é", "two"], "n": [1, None], "t": pa.array([1, 2], pa.timestamp("ns"))})
    sinks = [io.BytesIO(), io.BytesIO()]
    for sink, make in zip(sinks, (pa.ipc.new_file, pa.ipc.new_stream), strict=True):
        with make(sink, table.schema) as writer:
            writer.write_table(table)
    return [sink.getvalue() for sink in sinks]


door("tar", _tarred, b"ustar\x0000", b"0000000", b"GNU.sparse")(functools.partial(_source, ending=".tar"))
door("tgz", lambda: [gzip.compress(data, mtime=0) for data in _tarred()])(functools.partial(_source, ending=".tgz"))
door("zip", _zipped, b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06")(functools.partial(_source, ending=".zip"))
door("arrow", _arrow, b"ARROW1\0\0", b"\xff\xff\xff\xff")(functools.partial(_source, ending=".arrow"))
DUMP = (HEAD + wiki_page("A", "b") + wiki_page("C", "d") + TAIL).encode()
door("mds", lambda: [mds(2), mds(0)], b'"str"', b'"int"', b"null")(functools.partial(_source, ending=".mds"))
WIKI = "{{lang|fr|a}} [[b|c]] '''d''' {|\n! e\n|}\n== f ==\n* g <ref>h</ref> <math>i</math> {{#if:j}} &amp;"
TEX = (
    r"\documentclass{a}\newcommand{\b}[1]{c#1}\begin{document}\section{d}\b e $f$ \'a \begin{align}g\end{align}\item h~"
)


@door("wikitext", lambda: [WIKI.encode()], b"{{", b"}}", b"[[", b"{|", b"<ref>", b"<!--", b"\n* ", b"'''")
def _wikitext(data: bytes, folder: Path) -> None:
    from tasks.text.dumps.wikitext import read_article

    text = data.decode("utf-8", "replace")
    each(*(functools.partial(read_article, text, "Title", "en", ("datei",), tables) for tables in (True, False)))


@door("latex", lambda: [TEX.encode()], b"{", b"}", b"\\begin{", b"\\def\\a{", b"$", b"\\verb|", b"%")
def _latex(data: bytes, folder: Path) -> None:
    from tasks.text.dumps.latex import read_paper

    read_paper({"a.tex": data.decode("utf-8", "replace")})["text"].encode()


@door("post", lambda: [b"<p>a <code>b</code></p><pre>c</pre><ul><li>d</ul>"], b"<li>", b"</pre>", b"<ol>", b"&#")
def _post(data: bytes, folder: Path) -> None:
    from tasks.text.dumps.posts import text_of

    text_of(data.decode("utf-8", "replace")).encode()


@door("dump", lambda: [DUMP, gzip.compress(DUMP, mtime=0), bz2.compress(DUMP)], b"<page>", b"</page>", b"<ns>")
def _dump(data: bytes, folder: Path) -> None:
    from tasks.download.dumps.wikipedia import cut_pages, site_of

    ending = ".bz2" if data.startswith(b"BZ") else ".gz" if data.startswith(b"\x1f\x8b") else ""
    first, *_ = cut_pages(written(data, folder / f"a.xml{ending}"), "a", 4096)
    site_of(first.data)


def _archives() -> list[bytes]:
    records = [
        page("mill"),
        warc("https://example.org/x", http(b"5\r\nmills\r\n0\r\n\r\n", "text/html", "200 OK", CHUNKED)),
    ]
    old = [arc("filedesc://x.arc", b"1 0 x\n"), arc("https://example.org/arc", http(html("arc")))]
    return [b"".join(records), packed(*records), packed(b"".join(records)), _zstd(b"".join(records)), packed(*old)]


@door(
    "warc",
    _archives,
    b"WARC/1.0\r\n",
    b"Content-Length: 0",
    b"\r\n\r\n",
    b"\x1f\x8b\x08",
    b"HTTP/1.1 200",
    b"ffffffffffffffff",
)
def _warc(data: bytes, folder: Path) -> None:
    from tasks.download.web.pages import page_of
    from tasks.download.web.records import NotAnArchive, Record, read_records
    from tasks.download.web.sections import Reach
    from tasks.text.web.encoding import decode
    from tasks.text.web.extract import Page

    path = written(data, folder / f"web.warc{'.zst' if data.startswith(ZSTD) else ''}")
    with path.open("rb") as file, suppress(NotAnArchive):
        for record in read_records(file, path.name, 4096, Reach()):
            if isinstance(record, Record) and isinstance(found := page_of(record, 4096), Page):
                decode(found.content, found.encoding)[0].encode()


def _papers() -> list[bytes]:
    word = docx(paragraph("The mill"))
    texts = [mail(b"Its wheel turns."), b"---\ntitle: The mill\n---\n# Its wheel", html("mill")]
    book, slide = epub("<h1>The mill</h1><table><tr><td>a</td></tr></table>"), pptx(shape("title", "The mill"))
    open_ = odt("<text:list><text:list-item><text:p>The mill</text:p></text:list-item></text:list>")
    return [pdf(column(["The mill of the", "valley turned."]), [SCAN]), word, book, slide, open_, *texts]


@door("documents", _papers, b"stream\n", b" 0 obj", b"endobj", b"PK\x01\x02", b"boundary=", b"=?utf-8?q?", b"\n---\n")
def _document(data: bytes, folder: Path) -> None:
    from tasks.text.documents.read import PACKAGES, reader

    zipped, beyond = data.startswith(b"PK"), data.startswith(b"%PDF")
    for form in PACKAGES if zipped else ("pdf",) if beyond else ("mail", "markdown", "code", "html"):
        with suppress(BadDocument):
            str(_reader(reader)(data, form)).encode()


@functools.cache
def _reader(reader: Callable[[str, str], Callable[[bytes, str], object]]) -> Callable[[bytes, str], object]:
    return reader("resiliparse", "100000")


@door("rows", lambda: as_json(*PAIRS), b"system", b"tool", b"null", b"Human:")
def _rows(data: bytes, folder: Path) -> None:
    from tasks.download.pairs import instruction, preference

    try:
        row = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(row, dict):
        for take in (instruction, preference):
            try:
                take(row, "source")
            except BadDocument:
                continue


@door(
    "labelled",
    lambda: [b"text,label\nbad,1\ngood,0\n", as_lines({"text": "bad", "label": 1}, {"text": "x", "label": 0})],
)
def _labelled(data: bytes, folder: Path) -> None:
    from tasks.filter.fasttext_model.config import LabelledFile
    from tasks.filter.fasttext_model.labelled import read_labelled

    for ending in (".csv", ".jsonl"):
        path = written(data, folder / f"posts{ending}")
        file = LabelledFile(path=str(path), text_column="text", label_column="label", positive=["1"])
        each(functools.partial(lambda file: list(read_labelled(file)), file))


QUESTION = {"id": "1", "query": "Q?", "choices": [" a", " b"], "gold": 0}


@door("benchmark", lambda: [as_lines(QUESTION, QUESTION)])
def _benchmark(data: bytes, folder: Path) -> None:
    from tasks.evaluate.score.local import questions_of

    questions_of(written(data, folder / "in" / "mine.jsonl"), None, lambda choice: len(choice) < 99)


@door("language", lambda: [as_lines({"text": "one"}, {"text": "two é"}), gzip.compress(b"packed", mtime=0)])
def _language(data: bytes, folder: Path) -> None:
    from tasks.evaluate.language.config import LanguageConfig
    from tasks.evaluate.language.files import check_files, fingerprints

    for ending in (".txt", ".jsonl", ".txt.gz", ".jsonl.gz"):
        path = written(data, folder / f"mine{ending}")
        config = LanguageConfig(files={"mine": str(path)})
        each(functools.partial(fingerprints, config), functools.partial(check_files, config))


@door("questions", lambda: [as_lines({"benchmark": "b", "id": "1", "ngrams": 3, "found": 1})])
def _questions(data: bytes, folder: Path) -> None:
    from tasks.evaluate.subsets import FILE, find_dirty

    written(data, folder / FILE)
    find_dirty(folder, 0.5)


ANSWERED = {"id": "1", "cluster": "text", "scores": {"acc": 1.0}}


@door("items", lambda: [as_lines(ANSWERED, {**ANSWERED, "id": "2", "cluster": None})], b"NaN", b"1e400")
def _items(data: bytes, folder: Path) -> None:
    from tasks.significance.answered import Answered
    from tasks.significance.compare import chain_pairs, compare

    scores = {"tasks": {"t": {"metric": "acc", "value": 1}}}
    written(json.dumps({"models": {"base": scores, "sft": scores}}).encode(), folder / "scores.json")
    written(as_lines(ANSWERED), folder / "items" / "base" / "t.jsonl")
    written(data, folder / "items" / "sft" / "t.jsonl")
    compare(chain_pairs(Answered.read(folder, "run")))


SCORES = {"metric": "acc", "value": 0.5, "items": 2, "metrics": {"acc": {"value": 0.5, "stderr": None}}}


@door("scores", lambda: as_json({"models": {"base": {"bits_per_byte": 1.5, "tasks": {"t": SCORES}}, "m": {}}}), b"../")
def _scores(data: bytes, folder: Path) -> None:
    from tasks.significance.answered import Answered
    from tasks.significance.compare import chain_pairs, compare
    from tasks.significance.gate_config import GateConfig
    from tasks.significance.gates import judge_gates

    written(data, folder / "scores.json")
    run = Answered.read(folder, "run")
    gates = [GateConfig(task="t", at_least=0.1), GateConfig(task="bits_per_byte", no_worse_than="base", model="m")]
    each(lambda: judge_gates(gates, run, {}), lambda: compare(chain_pairs(run)))


GATE = {"task": "t", "model": "m", "condition": "at least 1", "score": "2", "passed": True, "why": "met"}


@door("gates", lambda: as_json([GATE, {**GATE, "passed": False}], []))
def _gates(data: bytes, folder: Path) -> None:
    from storage.artifact import Artifact
    from tasks.significance.gates import check_gates

    written(data, folder / "gates.json")
    check_gates(Artifact.at(folder))


# --- tokens and tokenizers ----------------------------------------------------------------------------------------


def _token_shards() -> list[bytes]:
    import tempfile

    import numpy as np

    from storage.shards.tokens import write_tokens

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for size in (100, 100_000):
            path = Path(folder, "x")
            documents = [np.arange(1, n + 1) for n in (3, 1, 9)]
            write_tokens(path, documents, vocab_size=size, eos_id=0, tokenizer_digest="ab" * 32, text_bytes=9)
            found.append(path.read_bytes())
    return found


@door("tokens", _token_shards, b"GRISTTOK")
def _tokens(data: bytes, folder: Path) -> None:
    from storage.shards.token_stream import TokenStream
    from storage.shards.tokens import open_tokens

    path = written(data, folder / "00000.tokens")
    shard = open_tokens(path, verify=True)
    stream = TokenStream([path], tokenizer_digest=shard.header.tokenizer_digest)
    stream.read(0, 100)
    stream.document_lengths([path])


@door("sources", lambda: as_json({"names": ["a", "b"], "sources": [0, 1], "documents": [2, 1]}))
def _sources(data: bytes, folder: Path) -> None:
    from storage.shards.token_stream import source_streams

    path = written(_token_shards()[0], folder / "00000.tokens")
    written(data, path.with_suffix(".sources"))
    for stream in source_streams([path], tokenizer_digest="ab" * 32).values():
        stream.read(0, 100)


@functools.cache
def _tokenizer() -> Path:
    """A folder with a small tokenizer, made once in a process."""
    import atexit
    import tempfile

    from models.tokenizer import load_tokenizer
    from tests.fuzz.tokenizer import make_tokenizer

    folder = Path(tempfile.mkdtemp(prefix="gristmill-fuzz-tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_tokenizer(folder)
    load_tokenizer(folder)  # which takes seconds to import
    return folder


@door("tokenizer", lambda: [(_tokenizer() / "tokenizer.json").read_bytes()], b'"merges"', b"\\u0120", b'"added_tokens"')
def _read_tokenizer(data: bytes, folder: Path) -> None:
    from storage.artifact import Artifact
    from tasks.tokenizer.adopted import check_adopted
    from tasks.tokenizer.compare import load_reference
    from tests.fuzz.tokenizer import CONFIG

    shutil.copytree(_tokenizer(), folder, dirs_exist_ok=True)
    written(data, folder / "tokenizer.json")
    each(
        lambda: load_reference("other", str(folder)).encode("A text é"),
        lambda: check_adopted(CONFIG, Artifact(folder=folder, digest=""), {}),
    )


TEMPLATE = Path(__file__).parents[2] / "models" / "chat_template.jinja"
JINJA = (
    b"{{ ''.__class__.__mro__ }}",
    b"{% for i in range(10**9) %}",
    b"{{ 'x' * 10**10 }}",
    b"{% raise %}",
    b"{%",
    b"}}",
)


@door(
    "template", lambda: [TEMPLATE.read_bytes()], *JINJA, b"{{ 1 / 0 }}", b"{{ messages[9].x.y }}", b"{% include 'x' %}"
)
def _template(data: bytes, folder: Path) -> None:
    from storage.artifact import Artifact
    from tasks.tokenizer.adopted import check_adopted
    from tests.fuzz.tokenizer import CONFIG

    shutil.copytree(_tokenizer(), folder, dirs_exist_ok=True)
    written(data, folder / "chat_template.jinja")
    check_adopted(CONFIG, Artifact(folder=folder, digest=""), {})


@functools.cache
def _pieces() -> bytes:
    import sentencepiece

    model = io.BytesIO()
    lines = ["The quick brown fox jumps over the lazy dog", "A text é with more words in it", "and a third"] * 5
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=60, minloglevel=2, hard_vocab_limit=False
    )
    return model.getvalue()


@door("sentencepiece", lambda: [_pieces()])
def _read_sentencepiece(data: bytes, folder: Path) -> None:
    from tasks.tokenizer.compare import load_reference

    written(data, folder / "pieces" / "tokenizer.model")
    load_reference("pieces", str(folder / "pieces")).encode("A text é")


# --- models -------------------------------------------------------------------------------------------------------


def _weights() -> list[bytes]:
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"a": "b"}}
    ).encode()
    return [struct.pack("<Q", len(header)) + header + bytes(8)]


@door("safetensors", _weights, b"data_offsets")
def _safetensors(data: bytes, folder: Path) -> None:
    _model(folder, weights=data)


@door(
    "config",
    lambda: as_json(
        {"model_type": "llama", "vocab_size": 400, "hidden_size": 64, "architectures": ["LlamaForCausalLM"]}
    ),
)
def _config(data: bytes, folder: Path) -> None:
    _model(folder, config=data)


def _model(
    folder: Path, weights: bytes | None = None, config: bytes = b'{"model_type": "llama", "vocab_size": 400}'
) -> None:
    from storage.artifact import Artifact
    from tasks.training.adopted_model import check_model

    shutil.copytree(_tokenizer(), folder / "model", dirs_exist_ok=True)
    written(_weights()[0] if weights is None else weights, folder / "model" / "model.safetensors")
    written(config, folder / "model" / "config.json")
    check_model(Artifact(folder=folder, digest=""), _tokenizer())


@door(
    "base",
    lambda: as_json(
        {"model_type": "gpt2", "vocab_size": 400, "n_embd": 8, "n_layer": 1, "n_head": 2},
        {"model_type": "llama", "auto_map": {"AutoConfig": "a.B"}, "max_position_embeddings": 8},
    ),
    b"quantization_config",
)
def _base(data: bytes, folder: Path) -> None:
    from tasks.base.check import check_files

    written(_weights()[0], folder / "model.safetensors")
    written(data, folder / "config.json")
    check_files(folder)


def _fasttext() -> list[bytes]:
    pack = struct.pack
    entries = b"".join(
        name + b"\0" + pack("<qb", 5, kind) for name, kind in ((b"a", 0), (b"__label__x", 1), (b"__label__y", 1))
    )
    rows = pack("<qq", 4, 2) + pack("<8f", *range(8))
    output = pack("<qq", 2, 2) + pack("<4f", *range(4))
    head = pack("<ii12id", 793712314, 12, 2, 5, 5, 1, 5, 1, 3, 3, 3, 2, 100, 100, 0.0)
    return [head + pack("<iiiqq", 3, 1, 2, 15, -1) + entries + b"\0" + rows + b"\0" + output]


@door("fasttext", _fasttext)
def _read_fasttext(data: bytes, folder: Path) -> None:
    import numpy as np
    import pyarrow as pa

    from tasks.filter.fasttext_model.classifier import Classifier
    from tasks.filter.fasttext_model.file import read_model
    from tasks.text.scan import utf8

    model = read_model(written(data, folder / "model.bin"))
    texts, offsets = utf8(pa.array(["a b é", ""]))
    Classifier(model, model.rows, np.ones(128, np.uint8)).sum(texts, offsets[:-1], offsets[1:])


# --- training -----------------------------------------------------------------------------------------------------


@door(
    "checkpoint",
    lambda: as_json({"identity": "me", "step": 5, "files": {"a": {"sha256": "0" * 64, "size": 1}}}),
    b"../",
)
def _checkpoint(data: bytes, folder: Path) -> None:
    from tasks.training.checkpoint_marker import newest_sound

    written(b"x", folder / "top" / "step-5" / "a")
    written(data, folder / "top" / "step-5" / "complete.json")
    newest_sound(folder / "top", "me")


@door("log", lambda: [as_lines({"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.4})])
def _log(data: bytes, folder: Path) -> None:
    from tasks.training.logs import cut_log, drop_torn, read_log

    path = written(data, folder / "log.jsonl")
    drop_torn(path)
    read_log(path)
    cut_log(path, 2)
