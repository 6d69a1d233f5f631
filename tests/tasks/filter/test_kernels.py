"""The compiled loops of filters that aren't in a library, compared with plain versions."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.filter.language import kernels as language
from tasks.filter.pii.patterns import kernels as pii
from tasks.filter.pii.patterns import name_kernels
from tasks.text.scan import utf8
from tests.hard_texts import PIECES, TEXTS

PERSONAL = st.lists(
    st.one_of(
        PIECES,
        st.text(st.sampled_from("0123456789 \xa0().-/aB_é"), max_size=24),
        st.text(st.sampled_from("a@.-é:1f "), max_size=24),
        st.sampled_from(
            ["-----BEGIN ", "GB12", "::", "1.2.3.4", "a@b.c", "00:11:22:33:44:55", "x" * 16 + "1", ":" * 70]
        ),
        st.sampled_from(
            ["hf_", "AKIA", "glpat-", "x" * 16, "key", "TOKEN", "=", ": ", "://", "u:p@", '"', "Bearer ", "a1" * 5]
        ),
        st.sampled_from(
            [
                "--",
                " -",
                " -p",
                "-u ",
                "--user=",
                "пароль",
                "密",
                "：",
                " is:",
                '\\"',
                "',",
                "<pwd>",
                "passwort",
                "a1b2c3d4",
            ]
        ),
        st.sampled_from(
            [
                "a%40",
                "&#64;",
                "&#X40;",
                "&commat;",
                "(at)",
                "[ at ]",
                "a@b",
                " dot ",
                "[dot]",
                " { DOT }",
                "&#46;",
                "&Period;",
            ]
        ),
    ),
    max_size=5,
).map("".join)
NUMBER = re.compile(rb"\d(?:[ ().\-/]{0,3}\d)*")
RUN = re.compile(rb"[0-9A-Za-z_\-]+")
DOTTED = re.compile(rb"(?:\d{1,3}\.){3}\d{1,3}(?!\d)")
ADDRESS = re.compile(
    rb"(?<=[^\x00-\x20])@(?=[0-9A-Za-z_\-\x80-\xff]{1,255}"
    rb"(?:\.[0-9A-Za-z_\x80-\xff]|&[#p]| dot | ?[\[({<] ?dot ?[\])}>]))"
    rb"|(?<=.)(?:%40|&(?:#64|#x40|commat);|[\[({<] ?at ?[\])}>])",
    re.DOTALL | re.IGNORECASE,
)
PEM = re.compile(rb"(?<=-...-)B(?=EGIN )", re.DOTALL)
LETTERS = re.compile(rb"hf_|rg_|at-|AKIA")
USERINFO = re.compile(rb"://([^\x00-\x20\"<>@`/]*)\Z")
IBAN = re.compile(rb"(?:[A-Za-z_\-]*[_\-])?[A-Za-z]{2}\d\d")
HINTS = {tuple(ord(letter) & 31 for letter in hint) for hint in name_kernels.HINTS}
SIGN = re.compile(rb"(?<=.)[=:>]|(?<=[\"']),|\xef\xbc\x9a", re.DOTALL)
HYPHEN = re.compile(rb"(?<![0-9A-Za-z_\x80-\xff])-(?=[A-Za-z].)", re.DOTALL)
NAME = re.compile(rb"[0-9A-Za-z_\-]*")
VALUE = re.compile(rb"(?:[!#-&(-_a-~](?:[!#-&(-_a-~](?:[!#-&(-_a-~]|(?<=\\)\")*)?)?")
HEX, WORD = b"0123456789abcdefABCDEF", re.compile(rb"\w")


def candidates(data: bytes) -> set[tuple[int, int, int]]:
    """(kind, first byte, byte after the last) of all that can be personal data."""
    found = set()
    for match in NUMBER.finditer(data):
        if len(re.findall(rb"\d", match[0])) >= pii.PHONE_DIGITS:
            found.add((pii.DIGITS, *match.span()))
    for match in RUN.finditer(data):
        run, digits = match[0], len(re.findall(rb"\d", match[0]))
        digit = re.search(rb"\d", run)
        if digit is None:
            if len(run) >= pii.TOKEN_LENGTH and LETTERS.search(run):
                found.add((pii.TOKEN, *match.span()))
            continue
        if dotted := DOTTED.match(data, match.start() + digit.start()):
            found.add((pii.DOTTED, *dotted.span()))
        if len(run) < pii.CODE_DIGITS or not re.search(rb"[A-Za-z]", run):
            continue
        if len(run) >= pii.TOKEN_LENGTH:
            found.add((pii.TOKEN, *match.span()))
        long = len(run) >= pii.CODE_LENGTH and digits >= pii.CODE_DIGITS
        if long or IBAN.match(run):
            found.add((pii.CODE, *match.span()))
    users = {at: userinfo(data, at) for at, byte in enumerate(data) if byte == ord("@")}
    passwords = {at for at, user in users.items() if b":" in user}
    found |= {(pii.USERINFO, at, at + 1) for at, user in users.items() if b":" in user or len(user) >= pii.TOKEN_LENGTH}
    signs = [match.start() for match in ADDRESS.finditer(data) if match.start() not in passwords]
    found |= {(pii.AT, at, at + 1) for at in signs}
    found |= {(pii.ASSIGNED, *place) for match in SIGN.finditer(data) for place in assigned(data, *match.span())}
    flags = {match.start(): flag_end(data, match.start()) for match in HYPHEN.finditer(data)}
    found |= {(pii.FLAG, at, end) for at, end in flags.items() if end}
    found |= {(pii.PEM, *match.span()) for match in PEM.finditer(data)}
    return found | set(addresses(data))


def userinfo(data: bytes, at: int) -> bytes:
    """The user of a URL, with the password, that the @ at `at` ends, or nothing."""
    match = USERINFO.search(data[:at])
    found: bytes = match[1] if match and match.start() + 2 >= max(3, at - pii.LONGEST_USERINFO) else b""
    return found


def hints(name: bytes) -> bool:
    """Whether a name may be that of a secret."""
    letters = [byte & 31 for byte in name]
    return any(byte > 127 for byte in name) or not HINTS.isdisjoint(
        zip(letters, letters[1:], letters[2:], strict=False)
    )


def flag_end(data: bytes, at: int) -> int:
    """Where a flag that begins there and the secret behind it end, or 0."""
    name = NAME.match(data[: at + 1 + name_kernels.LONGEST_NAME], at + 1)
    assert name is not None
    user = name[0] == b"u" or re.fullmatch(rb"us..", name[0], re.DOTALL) is not None
    if gap := re.compile(rb"(?: {1,3}|=)[\"'\\]{0,5}").match(data, name.end()):
        first = min(gap.end(), name.end() + 6)
        value = VALUE.match(data[: first + name_kernels.LONGEST_VALUE], first)
        assert value is not None
        if user and b":" in value[0]:
            return value.end()
        spaced = gap[0][:1] == b" "
        if not user and spaced and hints(name[0]) and re.search(rb"\d", value[0]) and len(value[0]) >= 8:
            return value.end()
    if data[at + 1 : at + 2] == b"p" and data[at - 1 : at] == b" ":
        gap = re.compile(rb" {0,3}[\"']?").match(data, at + 2)
        assert gap is not None
        first = gap.end()
        value = VALUE.match(data[: first + name_kernels.LONGEST_VALUE], first)
        assert value is not None
        if re.search(rb"\d", value[0]) and len(value[0]) >= 8:
            return value.end()
    return 0


def assigned(data: bytes, sign: int, behind: int) -> list[tuple[int, int]]:
    """The place of the name and the value around this sign, if the name may be that of a secret."""
    last = sign
    while last > 1 and sign - last < 3 and data[last - 1] in b" ":
        last -= 1
    while last > 1 and sign - last < 6 and data[last - 1] in b"\"'\\]":
        last -= 1
    if data[sign:behind] == b":" and last == sign > 4 and data[last - 3 : last].lower() == b" is":
        last -= 3
    name = re.search(rb"[0-9A-Za-z_.\-\x80-\xff]*\Z", data[max(last - name_kernels.LONGEST_NAME, 0) : last])
    assert name is not None
    if not hints(name[0]):
        return []
    named = re.sub(rb"\A[\x80-\xbf]+", b"", name[0])  # a character that is cut
    at = behind
    while at < len(data) and at - sign <= 2 and data[at] in b"=>":
        at += 1
    for _ in range(3):
        while at < len(data) and at - behind <= 23 and data[at] in b" \t\"'\\":
            at += 1
        value = VALUE.match(data[: at + name_kernels.LONGEST_VALUE], at)
        assert value is not None
        at = value.end()
        if len(value[0]) >= name_kernels.SHORTEST_SECRET and re.search(rb"\d", value[0]):
            return [(last - len(named), at)]
        if not 0 < len(value[0]) <= 9:
            break
    return []


def addresses(data: bytes) -> list[tuple[int, int, int]]:
    """Runs of hex digits and colons that may be IPv6 or MAC addresses."""
    found, free = [], 0
    for colon in (place for place, byte in enumerate(data) if byte == ord(":")):
        if colon < free or colon + 1 == len(data):
            continue
        first = colon
        while first > free and colon - first < pii.LONGEST_ADDRESS and data[first - 1] in HEX:
            first -= 1
        match = re.compile(rb"[0-9a-fA-F:.]*").match(data, first)
        assert match is not None
        bounded = free
        free, run = match.end(), match[0]
        before = first > bounded and WORD.match(data[first - 1 : first])
        doubled = sum(run[at : at + 2] == b"::" for at in range(colon - first, len(run)))
        if before or WORD.match(data[free : free + 1]) or not 2 < len(run) <= pii.LONGEST_ADDRESS:
            continue
        if doubled == 1 or run.count(b":") >= 5:
            found.append((pii.COLONS, first, free))
    return found


@pytest.mark.shadow("tasks.filter.pii.patterns.kernels.scan")
@given(st.lists(PERSONAL, max_size=5))
@example(["1.1.1.1.1.1.1.1.1", "a@a.a@a.a@a.a", "aa11,bb22,cc33", "::1::2", "-----BEGIN "])
@example(["a пароль：a1b2c3d4", "mysql -p'a1b2c3d4", "-u a:b --user=a:b", "('key', 'a1b2c3d4')", "<token>a1b2c3d4</"])
@example(
    ["密" * 20 + ": a1b2c3d4", "a@b [dot] c a@b dot c a&commat;b a%40b a [AT] b", "--token   a1b2c3d4", "--token a"]
)
@example(["AKIAaaaaaaaaaaaaaaaa", 'api_key": "Bearer a1b2c3d4', "x://u:p@h.c a://b@c.d", "pwd=" * 60 + "1"])
@example(
    [
        "-p a1b2c3d4",
        "x -p   'a1b2c3d4",
        "key is: a1b2c3d4",
        'key="a1\\"b2c3d4"',
        "a@b&#46;c a@b&PERIOD;c",
        "s is:a1b2c3d4",
    ]
)
@settings(max_examples=300)
def test_whatever_can_be_personal_data_is_a_candidate(texts: list[str]) -> None:
    data, offsets = utf8(pa.array(texts, pa.string()))
    hits = np.empty((int(offsets[-1]) // 2 + 8, pii.FIELDS), np.int64)  # as `candidates` allots it
    count = pii.scan(data, offsets, pii.CLASSES, hits)
    assert count <= len(hits)
    expected = []
    for row, text in enumerate(texts):
        place = [len(text.encode()[:at].decode(errors="ignore")) for at in range(len(text.encode()) + 1)]
        expected += [[row, kind, place[a], place[b]] for kind, a, b in candidates(text.encode())]
    assert sorted(hits[:count].tolist()) == sorted(expected)


SPACES = "\u00a0\u2000\u2007\u200a\u202f\u3000\u2010\u2013\u2015\u2212"
FOLDED = re.compile(rf"[０-９＠٠-٩۰-۹०-९]|(?<=[0-9])[{SPACES}]|[{SPACES}](?=[0-9])")


@pytest.mark.shadow("tasks.filter.pii.patterns.kernels.foldable")
@given(st.lists(st.text(st.sampled_from(f"{SPACES}0123456789a @aé汉😀０９＠٠٩۰۹०९ー"), max_size=6), max_size=5))
@example(["0\u2013", "\u20130", "٠", "a\u00a0", "\u00a0"])
@settings(max_examples=300)
def test_texts_with_numbers_in_other_characters_are_marked(texts: list[str]) -> None:
    data, offsets = utf8(pa.array(texts, pa.string()))
    marks = np.zeros(len(texts), np.bool_)
    pii.foldable(data, offsets, pii.CLASSES, marks)
    assert marks.tolist() == [FOLDED.search(text) is not None for text in texts]


def cut(text: str, least: int) -> list[str]:
    """Pieces of whole lines with at least `least` bytes. A short rest joins the piece before."""
    pieces, waiting = [], ""
    for line in text.split("\n"):
        waiting += f"{line}\n"
        if len(waiting.encode()) >= least:
            pieces.append(waiting)
            waiting = ""
    # `split` sees one line end more than there is
    if waiting == "" and pieces:
        waiting = pieces.pop()
    waiting = waiting.removesuffix("\n")
    if not pieces or len(waiting.encode()) >= least:
        return [*pieces, waiting]
    return [*pieces[:-1], pieces[-1] + waiting]


@pytest.mark.shadow("tasks.filter.language.kernels.cut")
@given(st.lists(TEXTS, max_size=6), st.integers(1, 40))
@settings(max_examples=200)
def test_documents_are_cut_at_line_ends_and_their_letters_counted(texts: list[str], least: int) -> None:
    data, offsets = utf8(pa.array(texts, pa.string()))
    alphabetic = np.array([chr(code).isalpha() for code in range(0x3100)], np.bool_)
    room = int(offsets[-1]) // least + len(texts)
    begins, ends, letters = (np.empty(room, np.int64) for _ in range(3))
    firsts = np.empty(len(texts), np.int64)
    count = language.cut(data, offsets, least, alphabetic, begins, ends, letters, firsts)
    pieces = [cut(text, least) for text in texts]
    found = [data[a:b].tobytes().decode() for a, b in zip(begins[:count], ends[:count], strict=True)]
    assert found == [piece for one in pieces for piece in one]
    assert np.diff(firsts, append=count).tolist() == [len(one) for one in pieces]
    assert letters[:count].tolist() == [
        sum(ord(letter) < len(alphabetic) and letter.isalpha() for letter in piece) for piece in found
    ]


@pytest.mark.shadow("tasks.filter.language.kernels.share_letters")
@given(st.lists(st.tuples(st.integers(0, 4), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1))))
def test_a_language_has_its_share_of_a_documents_letters(documents: list[tuple[int, list[tuple[int, int]]]]) -> None:
    pieces = [piece for _, each in documents for piece in each]
    firsts = np.cumsum([0, *(len(each) for _, each in documents)])[:-1]
    part_labels, letters = (np.array([piece[k] for piece in pieces], np.int64) for k in range(2))
    own, shares = np.zeros(len(documents)), np.empty(len(pieces))
    rows, places = np.empty(len(pieces), np.int64), np.empty(len(pieces), np.int64)
    labels = np.array([label for label, _ in documents], np.int64)
    count = language.share_letters(firsts, part_labels, letters, 5, labels, own, rows, places, shares)
    wanted = {}
    for row, (_, each) in enumerate(documents):
        total = sum(found for _, found in each)
        for label in range(5):
            if letters_in := sum(found for place, found in each if place == label):
                wanted[row, label] = letters_in / total
    assert dict(zip(zip(rows[:count], places[:count], strict=True), shares[:count], strict=True)) == wanted
    assert own.tolist() == [wanted.get((row, label), 0.0) for row, label in enumerate(labels)]
