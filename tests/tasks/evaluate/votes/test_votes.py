"""Votes of people: blind, kept at once, undone, guarded from other pages, and preferences in the end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode

import pytest

from storage.artifact import Artifact
from storage.errors import ConfigError, DamagedArtifact, EmptyOutput, SourceError
from storage.keys import KeyPayload
from storage.maintain import adopt
from storage.refs import history, move
from storage.shards.lines import read_json_lines, write_json_lines
from storage.store import Store
from tasks.download import DownloadConfig, download
from tasks.evaluate.votes.ballot import Ballot, Vote, load_questions, read_votes
from tasks.evaluate.votes.config import VotesConfig
from tasks.evaluate.votes.results import majority, standings_of
from tasks.evaluate.votes.server import VoteServer
from tasks.evaluate.votes.stage import votes
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.stage.output import Output
from tests.pipeline.runs import mind_signals
from tests.tasks.tiny_model import RUNTIME, make_model

EVIL = '</div><script>fetch("http://evil.example")</script><img src=x onerror=alert(1)>\u202edesrever\0'


def make_compared(folder: Path, number: int = 12) -> Path:
    """Answers of two models: the good one's are better, the one to p1 is an attack, those to p2 are equal."""
    rows = [
        {
            "id": f"p{place}",
            "sample": 0,
            "prompt": [{"role": "user", "content": f"What is {place}?"}],
            "answers": {"good": f"It is {place}.", "bad": f"{place} of course" if place != 2 else "It is 2."},
        }
        for place in range(number)
    ]
    rows[1]["answers"] = {"good": "It is 1.", "bad": EVIL}
    write_json_lines(folder / "answers.jsonl", rows)
    return folder


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    return make_compared(tmp_path / "side_by_side")


def ballot_of(compared: Path, voter: str = "me") -> Ballot:
    return Ballot(load_questions(compared)[0], compared.parent / "votes.jsonl", voter)


class Page(HTMLParser):
    """A page as a browser reads it: elements, the texts of answers, and the fields of the form to vote."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []
        self.fields: dict[str, str] = {}
        self._inside = False
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        given = dict(attrs)
        if tag == "div" and "text" in (given.get("class") or ""):
            self._inside = True
            self.texts.append("")
        if tag == "input":
            self.fields[str(given["name"])] = str(given["value"])

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "div"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


class Browser:
    """One voter's browser."""

    def __init__(self, address: str) -> None:
        found = re.fullmatch(r"http://([\d.]+):(\d+)/\?token=(.+)", address)
        assert found is not None
        self.host, self.port, self.token = found[1], int(found[2]), found[3]

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        kind = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
        connection.request(method, path, body or None, {**kind, **headers})
        answer = connection.getresponse()
        content = answer.read().decode()
        connection.close()
        return answer.status, content, dict(answer.getheaders())

    def page(self) -> Page:
        status, content, _ = self.ask("GET", f"/?token={self.token}")
        assert status == 200
        return Page(content)

    def post(self, path: str, **fields: str) -> int:
        return self.ask("POST", path, urlencode({"token": self.token, **fields}).encode())[0]

    def vote(self, choice: str) -> int:
        return self.post("/vote", question=self.page().fields["question"], choice=choice)


@contextmanager
def serving(ballot: Ballot) -> Iterator[Browser]:
    with VoteServer(ballot) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield Browser(server.address)
        server.shutdown()


def test_a_vote_is_in_the_file_before_the_next_question_is_shown(compared: Path) -> None:
    ballot = ballot_of(compared)
    with serving(ballot) as browser:
        for number, choice in enumerate(("left", "right", "tie"), 1):
            before = browser.page()
            assert browser.vote(choice) == 303
            rows = list(read_json_lines(ballot.path))
            assert (len(rows), rows[-1]["choice"], rows[-1]["voter"]) == (number, choice, "me")
            answers = next(q for q in ballot.questions if q.key == rows[-1]["question"])
            shown = dict(zip((rows[-1]["left"], rows[-1]["right"]), before.texts[1:], strict=True))
            if answers.id != "p1":
                assert shown == {answers.first: answers.answers[0], answers.second: answers.answers[1]}
        assert "3 of 11 voted" in browser.ask("GET", f"/?token={browser.token}")[1]
    again = ballot_of(compared)
    assert (again.given, again.next()) == (ballot.given, ballot.next()), "who comes back goes on where he was"


def test_the_order_and_the_sides_are_another_voters_own(compared: Path) -> None:
    mine, again, other = ballot_of(compared), ballot_of(compared), ballot_of(compared, "other")
    assert [q.key for q in mine.questions] == [q.key for q in again.questions] != [q.key for q in other.questions]
    left = Counter(ballot_of(compared, f"voter {number}").sides(mine.questions[0])[0][0] for number in range(200))
    assert 60 < left["good"] < 140, "either side is as likely"
    assert len(mine.questions) == 11
    assert load_questions(compared)[1] == 1, "equal answers are not asked about"
    content = json.dumps([page_of(mine)])
    assert "good" not in content
    assert "bad" not in content, "the page does not say who wrote what"


def page_of(ballot: Ballot) -> str:
    with serving(ballot) as browser:
        return browser.ask("GET", f"/?token={browser.token}")[1]


def test_the_last_vote_can_be_undone_and_given_again(compared: Path) -> None:
    ballot = ballot_of(compared)
    key = ballot.questions[0].key
    with serving(ballot) as browser:
        assert browser.post("/undo") == 303, "nothing to undo is no error"
        first = browser.page().fields["question"]
        browser.vote("left")
        browser.vote("right")
        browser.post("/undo")
        browser.post("/undo")
        assert browser.page().fields["question"] == first
        browser.vote("tie")
    assert read_votes(ballot.path) == [Vote(key, "me", None)]
    assert len(list(read_json_lines(ballot.path))) == 5, "nothing is overwritten"


def test_the_key_of_a_question_which_names_its_models_is_not_on_the_page(compared: Path) -> None:
    ballot = ballot_of(compared)
    with serving(ballot) as browser:
        text = browser.ask("GET", f"/?token={browser.token}")[1]
        assert browser.post("/vote", question=ballot.questions[0].key, choice="left") == 303
    assert not any(question.key in text for question in ballot.questions)
    assert not read_votes(ballot.path), "and is no vote"


def test_a_page_that_is_sent_twice_votes_once(compared: Path) -> None:
    ballot = ballot_of(compared)
    with serving(ballot) as browser:
        question = browser.page().fields["question"]
        for choice in ("left", "right", "right"):
            assert browser.post("/vote", question=question, choice=choice) == 303
    assert len(list(read_json_lines(ballot.path))) == 1


def test_what_a_model_wrote_is_text_and_nothing_else(compared: Path) -> None:
    ballot = ballot_of(compared)
    with serving(ballot) as browser:
        while ballot.next() and ballot.next().id != "p1":  # type: ignore[union-attr]
            plain = browser.page().tags
            browser.vote("tie")
        attacked = browser.page()
        _, content, headers = browser.ask("GET", f"/?token={browser.token}")
    assert EVIL.replace("\u202e", "�").replace("\0", "�") in attacked.texts
    assert {tag: attacked.tags[tag] for tag in ("script", "img", "style", "form")} == {
        "script": 1,
        "img": 0,
        "style": 1,
        "form": 2,
    }
    assert attacked.tags["div"] == plain["div"]
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; frame-ancestors 'none'; base-uri 'none'; style-src 'nonce-")
    assert "unsafe" not in policy
    assert not re.search(r"(?:src|href|url|import)\s*[=(]\s*[\"']?(?!data:,)https?:", content.split("</style>")[0])


def test_who_has_no_token_or_another_name_for_this_host_is_refused(compared: Path) -> None:
    ballot = ballot_of(compared)
    with serving(ballot) as browser:
        key = browser.page().fields["question"]
        vote = urlencode({"token": browser.token, "question": key, "choice": "left"}).encode()
        good = f"/?token={browser.token}"
        assert browser.ask("GET", "/")[0] == 403
        assert browser.ask("GET", "/?token=guess")[0] == 403
        assert browser.ask("GET", "/?token=%F0%9F%A6%8A")[0] == 403
        assert browser.ask("GET", good, Host="evil.example")[0] == 421
        assert browser.ask("GET", good, Host=f"evil.example:{browser.port}")[0] == 421
        assert browser.ask("GET", good, Host=f"localhost:{browser.port}")[0] == 200
        for origin in ("http://evil.example", "null", f"http://{browser.host}:{browser.port + 1}"):
            assert browser.ask("POST", "/vote", vote, Origin=origin)[0] == 403
        assert browser.post("/vote", token="guess", question=key, choice="left") == 403
        assert browser.ask("POST", "/vote", vote, Host="evil.example")[0] == 421
        assert browser.ask("GET", "/../votes.jsonl")[0] == 404
        assert not ballot.path.exists()
        assert browser.ask("POST", "/vote", vote, Origin=f"http://{browser.host}:{browser.port}")[0] == 303
    assert len(read_votes(ballot.path)) == 1


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/vote", b"x" * 5000, {}, 413),
        ("/vote", b"", {"Content-Length": "-1"}, 413),
        ("/vote", b"", {"Content-Length": "many"}, 413),
        ("/vote", b"\xff=\xfe", {}, 400),
        ("/vote", b"&".join([b"a=b"] * 50), {}, 400),
        ("/vote", b"TOKEN&choice=maybe", {}, 400),
        ("/vote", b"TOKEN", {}, 400),
        ("/other", b"TOKEN", {}, 400),
        ("/vote", b"token=", {}, 403),
    ],
)
def test_what_is_no_vote_is_refused_and_the_server_goes_on(
    path: str, body: bytes, headers: dict[str, str], status: int, compared: Path
) -> None:
    ballot = ballot_of(compared)
    with serving(ballot) as browser:
        sent = body.replace(b"TOKEN", f"token={browser.token}".encode())
        assert browser.ask("POST", path, sent, **headers)[0] == status
        assert browser.vote("left") == 303
    assert len(read_votes(ballot.path)) == 1


def test_half_a_line_is_dropped_and_what_is_no_vote_is_named(compared: Path) -> None:
    ballot = ballot_of(compared)
    question = ballot.next()
    assert question is not None
    ballot.vote(question.key, "left")
    whole = ballot.path.read_bytes()
    ballot.path.write_bytes(whole + whole[:-20])
    assert len(read_votes(ballot.path)) == 1
    assert ballot_of(compared).path.read_bytes() == whole
    ballot.path.write_bytes(whole.rstrip())
    assert len(read_votes(ballot.path)) == 1
    assert ballot_of(compared).path.read_bytes() == whole, "an editor took the line feed"
    for line in (b"null", b"{}", whole.strip().replace(b'"left"', b'"third"'), b"\xff", b"[" * 100_000):
        ballot.path.write_bytes(whole + line + b"\n")
        with pytest.raises(SourceError, match=r"votes\.jsonl, line 2 isn't a vote"):
            read_votes(ballot.path)
    with pytest.raises(SourceError, match="can't be read"):
        read_votes(compared)
    for name in ("", "a\nb", "\udcff", "a" * 61):
        with pytest.raises(ConfigError, match="The voter's name can't be used"):
            ballot_of(compared, name)


def test_answers_that_are_damaged_missing_or_alike_are_told(compared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lacks answers\.jsonl"):
        load_questions(tmp_path)
    with pytest.raises(ConfigError, match=r"nobody isn't a model .* Name two of"):
        load_questions(compared, ["good", "nobody"])
    for content in ("null\n", "{}\n", '{"id": 1, "prompt": 5, "answers": {"a": "b", "c": "d"}}', "\ud800"):
        (compared / "answers.jsonl").write_text(content, errors="surrogatepass")
        with pytest.raises(DamagedArtifact, match="is damaged"):
            load_questions(compared)
    (compared / "answers.jsonl").write_text('{"id": "1", "prompt": [], "answers": {"a": "b", "c": "b"}}\n')
    with pytest.raises(ConfigError, match="are the same"):
        load_questions(compared)


def test_the_majority_of_voters_decides() -> None:
    assert majority(["a", "b", "a", None]) == "a"
    assert majority(["a", "b"]) is majority([None]) is majority([]) is None
    assert majority(["a", None, None]) == "a"


def voted(compared: Path, ties: int = 2) -> Path:
    """All votes for the good model, except the first ones, which are ties."""
    ballot = ballot_of(compared)
    for number in range(len(ballot.questions)):
        question = ballot.next()
        assert question is not None
        (left, _), _ = ballot.sides(question)
        ballot.vote(question.key, "tie" if number < ties else "left" if left == "good" else "right")
    return ballot.path


def downloaded(pairs: Path, folder: Path) -> Output:
    """The rows that `download` reads from a file of preferences."""
    (folder / "text.txt").write_text("A document, which download does not go without.")
    documents = {"kind": "files", "name": "text", "paths": [str(folder / "text.txt")]}
    source = {"kind": "files", "name": "votes", "role": "preferences", "paths": [str(pairs)]}
    out = Output.at(folder / "download", stage="download", runtime=RUNTIME)
    config = {"sources": [documents, source], "benchmarks": ["piqa"], "benchmark_items": 1, "max_quarantined_share": 0}
    download.function(DownloadConfig.model_validate(config), out)
    return out


def test_votes_are_preferences_that_download_reads(compared: Path, tmp_path: Path) -> None:
    file = voted(compared)
    stray = json.loads(file.read_bytes().splitlines()[0])
    with file.open("a") as more:
        more.write(json.dumps({**stray, "question": "0" * 32}) + "\n")
        more.write(json.dumps({**stray, "voter": "bob", "choice": "left", "left": "baad"}) + "\n")  # no model of it
    attacked = next(q for q in ballot_of(compared).questions if q.id == "p1")
    tie = any(vote.winner is None and vote.question == attacked.key for vote in read_votes(file))
    out = Output.at(tmp_path / "votes", stage="votes")
    votes.function(VotesConfig(file=str(file)), Artifact.at(compared), out)
    removed = {"tie": 2} if tie else {"no_text": 1, "tie": 2}
    assert out.counts["questions"] == {
        "in": 11,
        "kept": 11 - sum(removed.values()),
        "removed": removed,
        "quarantined": 0,
    }
    assert out.counts["votes_on_others"] == 2
    pairs = list(read_json_lines(out.path / "preferences" / "pairs.jsonl"))
    for pair in pairs:
        number = re.sub(r"\D", "", pair["prompt"][0]["content"])
        assert pair["chosen"] == [{"role": "assistant", "content": f"It is {number}."}]
        assert pair["rejected"] == [{"role": "assistant", "content": f"{number} of course"}]
    read = downloaded(out.path / "preferences" / "pairs.jsonl", tmp_path)
    rows = [row for path in (read.path / "preferences").iterdir() for row in read_json_lines(path)]
    fields = ("prompt", "chosen", "rejected")
    assert [[row[name] for name in fields] for row in rows] == [[pair[name] for name in fields] for pair in pairs]


@pytest.mark.soak
def test_dpo_learns_from_votes(tmp_path: Path) -> None:
    compared = make_compared(tmp_path / "side_by_side", 24)
    out = Output.at(tmp_path / "votes", stage="votes")
    votes.function(VotesConfig(file=str(voted(compared))), Artifact.at(compared), out)
    read = downloaded(out.path / "preferences" / "pairs.jsonl", tmp_path)
    aligned = Output.at(tmp_path / "dpo", stage="dpo", runtime=RUNTIME)
    model = Artifact.at(make_model(tmp_path / "model"))
    config = DpoConfig(epochs=1, global_batch=4, validation_share=0)
    dpo.function(config, model, Artifact.at(read.path / "preferences"), aligned)
    assert aligned.counts["documents"]["kept"] == out.counts["questions"]["kept"]


def test_results_of_votes_are_standings(compared: Path) -> None:
    questions, _ = load_questions(compared)
    found = standings_of(questions, read_votes(voted(compared)))
    assert found is not None
    pair = found.pairs["bad", "good"]
    assert (pair.wins, pair.ties, pair.losses) == (0, 2, 9)
    assert pair.p == pytest.approx(2 / 2**9)
    assert standings_of(questions, []) is None


def test_ties_alone_are_no_preferences(compared: Path, tmp_path: Path) -> None:
    with pytest.raises(EmptyOutput, match="kept none of 11 questions"):
        votes.function(VotesConfig(file=str(voted(compared, 11))), Artifact.at(compared), Output.at(tmp_path / "out"))
    other = Artifact.at(make_compared(tmp_path / "other" / "side_by_side", 3))
    (other.path / "answers.jsonl").write_text((other.path / "answers.jsonl").read_text().replace("What", "Which"))
    with pytest.raises(EmptyOutput, match=r"lacks votes on these answers \(11 are on others\)"):
        votes.function(VotesConfig(file=str(compared.parent / "votes.jsonl")), other, Output.at(tmp_path / "out"))


def command(store: Path, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "vote", "demo/evaluate", "--store", str(store), "--votes", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        preexec_fn=mind_signals,
    )


def opened(process: subprocess.Popen[str]) -> Browser:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Open "):
            return Browser(line.removeprefix("Open ").strip())
    raise AssertionError("it said no address")


def test_the_command_survives_a_kill_and_ends_with_an_artifact(tmp_path: Path) -> None:
    store, file = Store(str(tmp_path / "store")), tmp_path / "votes.jsonl"
    make_compared(tmp_path / "made" / "side_by_side", 5)
    payload = KeyPayload(stage="evaluate", version=1, config={}, inputs={})
    made = adopt(store, tmp_path / "made", payload, {}, "a test")
    move(store, "demo/evaluate", made.location, made.digest)
    first = command(tmp_path / "store", file)
    browser = opened(first)
    assert browser.vote("left") == 303
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = command(tmp_path / "store", file)
    browser = opened(second)
    assert "1 of 4 voted" in browser.ask("GET", f"/?token={browser.token}")[1]
    busy = command(tmp_path / "store", file)
    assert "Another `gristmill vote` writes to" in busy.communicate(timeout=60)[0]
    assert busy.returncode == 1
    for choice in ("right", "tie", "left"):
        browser.vote(choice)
    assert "That was all" in browser.ask("GET", f"/?token={browser.token}")[1]
    time.sleep(0.2)
    second.send_signal(signal.SIGINT)
    try:
        said, _ = second.communicate(timeout=60)
    finally:
        second.kill()
    assert second.returncode == 0, said
    assert "bad : good" in said
    assert "demo/votes has 3 preferences" in said
    (entry,) = history(store, "demo/votes")
    pairs = store.get(entry.location).path / "preferences" / "pairs.jsonl"
    assert f"paths: [{pairs}]" in said
    assert len(list(read_json_lines(pairs))) == 3
