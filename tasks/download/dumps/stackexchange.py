"""Questions of a StackExchange site, each with its answers, from the site's .7z or its Posts.xml.

A post is a line, so one that is broken costs itself. The answers of a question are anywhere in the file. So posts go
into a temporary database (SQLite), packed, which takes about a third of Posts.xml on the disk, and come out by
question. Memory is that of its cache.
"""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

from storage.errors import SourceError
from tasks.download.config import DumpSource
from tasks.download.sources.containers.unpacked import BOMB_BYTES, BOMB_RATIO, Bomb
from tasks.download.sources.rows import Refused, Row
from tasks.text.process import ExtractorProcess, Failed, process_of

POSTS, QUESTION, ANSWER = "Posts.xml", "1", "2"
ROW = b"<row "
READ_BYTES = 1 << 18
SITE = re.compile(r"([a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:com|net|org))(?:-Posts)?(?:\.7z)?$")
TAG = re.compile(r"[^<>|]+")
KEPT = ("Title", "Tags", "Score", "CreationDate", "ContentLicense", "AcceptedAnswerId")
COMMIT_EVERY = 100_000  # posts
TABLE = "CREATE TABLE post (question INTEGER, answer INTEGER, score INTEGER, id INTEGER, fields TEXT, body BLOB)"
ORDER = "CREATE INDEX by_question ON post (question, answer, score DESC, id)"
LICENCES = {"CC BY-SA 2.5": "CC-BY-SA-2.5", "CC BY-SA 3.0": "CC-BY-SA-3.0", "CC BY-SA 4.0": "CC-BY-SA-4.0"}


def read_questions(path: Path, name: str, source: DumpSource, limit: int, scratch: Path) -> Iterator[Row | Refused]:
    """The questions of a site, with text and metadata, and posts that are none refused. `scratch` is a folder for the
    database. Raises SourceError, OSError."""
    file = scratch / "posts.sqlite"
    file.unlink(missing_ok=True)
    posts = _Posts(file, name, limit)
    try:
        if path.suffix == ".7z":
            _unpack(path, posts)
        else:
            with path.open("rb") as plain:
                while data := plain.read(READ_BYTES):
                    posts.add(data)
        yield from posts.end()
        if not posts.number:
            raise SourceError(f"{path} has no posts of StackExchange.", "Replace it, or remove it from `paths`.")
        process = process_of("tasks.text.dumps.posts", (), source.seconds)
        yield from _threads(posts.database, name, _site(path), process)
    finally:
        posts.database.close()
        file.unlink(missing_ok=True)


class _Posts:
    """The posts of a file that comes in pieces, in a database."""

    def __init__(self, file: Path, name: str, limit: int) -> None:
        self.database = sqlite3.connect(file, check_same_thread=False)  # py7zr may unpack in a thread of its own
        self.database.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {TABLE}")
        self._name, self._limit = name, limit
        self._rest, self._line, self._skips, self._ended = b"", 0, False, False
        self.damage = ""
        self.refused: list[Refused] = []
        self.number = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        self._rest = rest
        if len(rest) > self._limit:
            self._rest, self._skips = b"", True

    def end(self) -> Iterator[Refused]:
        """Take the last line. Returns the posts that aren't used."""
        self._take(self._rest)
        if self.damage or not self._ended:
            why = self.damage or "the file ends within posts"
            self.refused.append(Refused("damaged_data", f"{self._name}:{self._line}", why=why))
        self.database.execute(ORDER)
        yield from self.refused

    def _take(self, line: bytes) -> None:
        self._line += 1
        place = f"{self._name}:{self._line}"
        if self._skips or len(line) > self._limit:
            self._skips = False
            self.refused.append(Refused("too_long", place))
        elif line.lstrip().startswith(ROW):
            try:
                self._keep(dict(xml.fromstring(line).attrib), place)
            except (xml.ParseError, ValueError, OverflowError) as error:
                self.refused.append(Refused("damaged_post", place, why=str(error)))
        self._ended = self._ended or b"</posts>" in line

    def _keep(self, post: dict[str, str], place: str) -> None:
        kind, number = post.get("PostTypeId"), int(post["Id"]) if "Id" in post else 0
        self.number += 1
        if kind not in (QUESTION, ANSWER) or not number:
            self.refused.append(Refused("not_a_question", place, removed=True))
            return
        question = number if kind == QUESTION else int(post.get("ParentId", "0"))
        fields = json.dumps({name: post[name] for name in KEPT if name in post}, ensure_ascii=False)
        body = zlib.compress(post.get("Body", "").encode("utf-8", "surrogatepass"), 1)
        values = (question, kind == ANSWER, int(post.get("Score", "0")), number, fields, body)
        self.database.execute("INSERT INTO post VALUES (?, ?, ?, ?, ?, ?)", values)
        if self.number % COMMIT_EVERY == 0:
            self.database.commit()


def _unpack(path: Path, posts: _Posts) -> None:
    """Give the posts of a .7z. Raises SourceError."""
    import lzma
    import struct

    from py7zr import SevenZipFile
    from py7zr.exceptions import ArchiveError
    from py7zr.io import Py7zIO, WriterFactory

    class Taken(Py7zIO):  # type: ignore[misc]
        """Hands on what is unpacked."""

        def __init__(self) -> None:
            self.taken = 0

        def write(self, s: bytes | bytearray) -> int:
            """Hand on bytes."""
            self.taken += len(s)
            if self.taken > max(BOMB_BYTES, BOMB_RATIO * size):
                raise Bomb(f"it unpacks to more than {BOMB_RATIO} times its size")
            posts.add(bytes(s))
            return len(s)

        def read(self, size: int | None = None) -> bytes:
            """Nothing."""
            return b""

        def seek(self, offset: int, whence: int = 0) -> int:
            """Nowhere."""
            return 0

        def flush(self) -> None:
            """Nothing."""

        def size(self) -> int:
            """The number of bytes that were handed on."""
            return self.taken

    class One(WriterFactory):  # type: ignore[misc]
        """Makes them."""

        def create(self, filename: str) -> Py7zIO:
            """One for a member."""
            return Taken()

    size = path.stat().st_size
    try:
        with path.open("rb") as file, SevenZipFile(file) as archive:
            named = [member for member in archive.getnames() if member.rpartition("/")[2] == POSTS]
            if not named:
                raise SourceError(f"{path} has no {POSTS}.", "Replace it, or remove it from `paths`.")
            if archive.needs_password():
                raise SourceError(f"{path} is encrypted.", "Decrypt it, or remove it from `paths`.")
            archive.extract(targets=named[:1], factory=One())
    except (ArchiveError, lzma.LZMAError, EOFError, ValueError, struct.error, IndexError, TypeError) as error:
        if not posts.number:
            raise SourceError(
                f"{path} is not a 7z archive that can be read: {error}.", "Replace it, or remove it from `paths`."
            ) from error
        posts.damage = str(error) or type(error).__name__


def _threads(database: sqlite3.Connection, name: str, site: str, process: ExtractorProcess) -> Iterator[Row | Refused]:
    question: tuple[Any, ...] | None = None
    answers: list[tuple[Any, ...]] = []
    found = database.execute("SELECT question, answer, score, id, fields, body FROM post ORDER BY 1, 2, 3 DESC, 4")
    for post in found:
        if post[1] and question is not None and question[0] == post[0]:
            answers.append(post)
            continue
        if question is not None:
            yield _thread(question, answers, name, site, process)
        question, answers = (None, []) if post[1] else (post, [])
        if post[1]:
            yield Refused("no_question", f"{name} post {post[3]}", removed=True)
    if question is not None:
        yield _thread(question, answers, name, site, process)


def _thread(
    question: tuple[Any, ...], answers: list[tuple[Any, ...]], name: str, site: str, process: ExtractorProcess
) -> Row | Refused:
    _, _, score, number, told, body = question
    fields = json.loads(told)
    place = f"{name} post {number}"
    title = fields.get("Title", "")
    bodies = [zlib.decompress(each).decode("utf-8", "surrogatepass") for each in (body, *(one[5] for one in answers))]
    found = process.read((title, bodies[0], bodies[1:]))
    if isinstance(found, Failed):
        return Refused(found.reason, place, why=f"{title}: {found.why}" if found.why else title)
    if not found["text"]:
        return Refused("no_text", place, why=title, removed=True)
    accepted = fields.get("AcceptedAnswerId")
    ids = [str(one[3]) for one in answers]
    licence = fields.get("ContentLicense", "")
    values = {
        "title": title,
        "tags": TAG.findall(fields.get("Tags", "")),
        "score": score,
        "answer_scores": [one[2] for one in answers],
        "accepted_answer": ids.index(accepted) + 1 if accepted in ids else None,
        "question_id": number,
        "date": fields.get("CreationDate"),
        "url": f"https://{site}/questions/{number}" if site else None,
        "license": LICENCES.get(licence, licence),
    }
    return Row(
        {"text": found["text"], **{key: value for key, value in values.items() if value not in (None, "")}}, place
    )


def _site(path: Path) -> str:
    """The site's host, by the name of its .7z, or of the folder of Posts.xml. Empty if it isn't one."""
    found = SITE.search(path.name if path.suffix == ".7z" else path.absolute().parent.name)
    return found.group(1) if found else ""
