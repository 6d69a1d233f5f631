"""The audit log: what a line holds, its files, and what a kill, a full disk or another process do to it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage.errors import StoreError
from tasks.serve.watch import WatchConfig
from tasks.serve.watch import audit as audit_module
from tasks.serve.watch.audit import AuditLog
from tasks.serve.watch.audit_reader import Wanted, records
from tasks.serve.watch.config import AuditConfig
from tests.tasks.serve.watch.report import ANSWER, CHAT, PROMPT, RELEASE, Found, ask, samples, value, watching

DAY = 86_400
NOON = 1_795_780_800.0  # of a day in 2026, in UTC


def lines(folder: Path) -> list[dict[str, Any]]:
    return list(records(folder, Wanted()))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_line_says_who_when_what_and_how_it_ended(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        ask(watch, findings=(Found("email", count=2), Found("card", "refuse", "input")), client="203.0.113.9")
    (line,) = lines(tmp_path)
    assert line["time"].endswith("Z")
    assert len(line["client"]) == 16
    assert line["ms"] >= line["first_ms"] >= 0
    said = {"id": "r0", "key": "alice", "route": CHAT, "model": "tiny", "release": RELEASE["digest"], "status": 200}
    said |= {"finish": "stop", "prompt_tokens": 7, "completion_tokens": 5, "cost_usd": 0.25, "engine": "llama.cpp"}
    assert said.items() <= line.items()
    assert line["guards"] == [
        {"rule": "email", "direction": "output", "action": "mask", "count": 2},
        {"rule": "card", "direction": "input", "action": "refuse", "count": 1},
    ]


def test_a_swap_while_a_request_is_answered_does_not_change_its_release(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        before, second, refused = (watch.request(request_id=f"r{n}", route=CHAT, model="tiny") for n in range(3))
        before.started()
        watch.serves("tiny", {"digest": "new"})
        second.started(release="of the second release")
        for one in (before, second, refused):
            one.end(status=200, finish="stop")
    assert [line["release"] for line in lines(tmp_path)] == [RELEASE["digest"], "of the second release", ""]


def test_no_text_and_no_address_is_kept_and_digests_need_the_salt(tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        with watching(folder) as watch:
            ask(watch, client="203.0.113.9")
            ask(watch, client="203.0.113.9", request_text="another")
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (PROMPT, ANSWER, "203.0.113.9"):
        assert text.encode() not in kept
    first, second = lines(tmp_path / "one")
    assert first["answer_hmac"] == second["answer_hmac"] != first["prompt_hmac"] != second["prompt_hmac"]
    assert first["client"] == second["client"]
    other = lines(tmp_path / "two")[0]
    assert other["prompt_hmac"] != first["prompt_hmac"], "each server has its own salt"
    assert other["client"] != first["client"]
    assert mode(tmp_path / "one" / "audit-salt") == 0o600
    assert not (tmp_path / "one" / "audit-text").exists()


def test_the_address_is_left_out_if_so_configured(tmp_path: Path) -> None:
    with watching(tmp_path, audit={"client": "none"}) as watch:
        ask(watch, client="203.0.113.9")
    assert "client" not in lines(tmp_path)[0]


def test_texts_are_kept_only_if_asked_for_in_a_folder_of_their_own(tmp_path: Path) -> None:
    with watching(tmp_path, audit={"text": True}) as watch:
        ask(watch, request_text="half \ud83d pair")
    (file,) = (tmp_path / "audit-text").iterdir()
    (text,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert (text["id"], text["prompt"], text["answer"]) == ("r0", "half ? pair", ANSWER)
    assert ANSWER not in next((tmp_path / "audit").iterdir()).read_text()
    assert [mode(tmp_path / "audit-text"), mode(file)] == [0o700, 0o600]
    assert [mode(tmp_path / "audit"), mode(next((tmp_path / "audit").iterdir()))] == [0o700, 0o600]


def test_lines_are_there_within_a_second(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        ask(watch)
        time.sleep(1.0)
        assert len(lines(tmp_path)) == 1


def put(log: AuditLog, number: int, at: float) -> None:
    log.put({"time": f"{at:.0f}", "id": f"r{number}", "fill": "x" * 1000}, PROMPT, ANSWER)


def test_files_end_with_the_day_and_by_size_and_old_ones_go(tmp_path: Path) -> None:
    now = [NOON]
    for day in range(6):
        log = AuditLog(AuditConfig(file_mb=1, days=3), tmp_path, clock=lambda: now[0])
        for number in range(1500 if day == 5 else 3):
            put(log, number, now[0])
        log.close()
        now[0] += DAY
    names = [path.name for path in sorted((tmp_path / "audit").iterdir())]
    assert [name[:8] for name in names] == ["20261129", "20261130", "20261201", "20261202", "20261202"]
    sizes = [path.stat().st_size for path in sorted((tmp_path / "audit").iterdir())]
    assert 1_000_000 <= sizes[-2] <= 1_003_000
    assert len(lines(tmp_path)) == 9 + 1500
    for path in (tmp_path / "audit").iterdir():
        assert path.read_bytes().endswith(b"\n")


def test_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    for number in range(8):
        log = AuditLog(AuditConfig(files=3), tmp_path, clock=lambda: NOON)
        put(log, number, NOON + number)
        log.close()
    assert [line["id"] for line in lines(tmp_path)] == ["r5", "r6", "r7"]


def test_a_day_ends_without_a_request_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "FLUSH_SECONDS", 0.01)
    now = [NOON]
    log = AuditLog(AuditConfig(days=1), tmp_path, clock=lambda: now[0])
    put(log, 1, NOON)
    time.sleep(0.2)
    assert len(lines(tmp_path)) == 1
    now[0] += 3 * DAY
    time.sleep(0.2)
    assert list((tmp_path / "audit").iterdir()) == []
    log.close()


def test_files_of_another_running_process_are_left_alone(tmp_path: Path) -> None:
    other = AuditLog(AuditConfig(files=2), tmp_path, clock=lambda: NOON)
    put(other, 0, NOON)
    time.sleep(0.5)
    for number in range(4):
        log = AuditLog(AuditConfig(files=2), tmp_path, clock=lambda: NOON + 1)
        put(log, 10 + number, NOON + 1)
        log.close()
    put(other, 2, NOON + 3)
    other.close()
    assert [line["id"] for line in lines(tmp_path)] == ["r0", "r12", "r13", "r2"]


WRITER = """
import sys, threading, time
from pathlib import Path
from tests.tasks.serve.watch.report import ask, watching
with watching(Path(sys.argv[1]), audit={"text": True}) as watch:
    for number in range(10_000_000):
        ask(watch, number, request_text="x" * (number % 7) * 4000)
        if number % 100 == 0:
            print(number, time.monotonic(), flush=True)
        time.sleep(0.0003)
"""


def test_a_killed_writer_leaves_whole_lines_and_loses_at_most_a_second(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = [process.stdout.readline()]
    time.sleep(2)
    process.kill()
    died = time.monotonic()
    said += process.stdout.read().splitlines()
    process.wait()
    found = lines(tmp_path)
    assert [line["id"] for line in found] == [f"r{number}" for number in range(len(found))]
    reported = [(int(number), float(at)) for number, at in (line.split() for line in said)]
    assert len(found) > max(number for number, at in reported if at < died - 1)
    for path in tmp_path.glob("audit*/*.jsonl"):
        whole = path.read_bytes().rpartition(b"\n")[0]
        assert all(json.loads(line) for line in whole.splitlines())


def test_a_line_that_a_dead_process_left_unfinished_is_cut_off(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        ask(watch)
    (path,) = (tmp_path / "audit").iterdir()
    before = path.read_bytes()
    path.write_bytes(before + b'{"time":"2026')
    assert len(lines(tmp_path)) == 1
    with watching(tmp_path):
        assert path.read_bytes() == before


FULL = """
import resource, sys, time
from pathlib import Path
from tests.tasks.serve.watch.report import ask, value, watching
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
def wait(condition):
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)  # a second look at a full disk says nothing
with watching(Path(sys.argv[1]), audit={"required": sys.argv[2] == "True"}) as watch:
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    for number in range(20):
        ask(watch, number)
    wait(lambda: watch.audit.failing)
    said = []
    said += [watch.refusing, watch.audit.failing, value(watch, "gristmill_audit_failing")]
    whole = [path.read_bytes() for path in Path(sys.argv[1]).glob("audit/*")]
    said += [all(part.endswith(b"\\n") for part in whole if part)]
    if sys.argv[3] == "True":
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        wait(lambda: not watch.audit.failing)
    said += [watch.refusing, watch.audit.failing]
print(*said, watch.metrics.registry.get_sample_value("gristmill_audit_lost_total"))
"""


@pytest.mark.parametrize(("required", "space_again"), [(False, True), (True, True), (False, False)])
def test_on_a_full_disk_lines_wait_and_requests_go_on_unless_the_log_is_required(
    tmp_path: Path, required: bool, space_again: bool
) -> None:
    script = [sys.executable, "-c", FULL, str(tmp_path), str(required), str(space_again)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    refusing, failing, gauge, whole, later, still, lost = done.stdout.split()
    assert (refusing, failing, gauge, whole) == (str(required), "True", "1.0", "True")
    assert (later, still) == ("False", str(not space_again))
    assert done.stderr.count("can't be written: File too large") == 1
    ids = [line["id"] for line in lines(tmp_path)]
    assert ids == [f"r{number}" for number in range(len(ids))]
    assert len(ids) + float(lost) == 20
    assert (len(ids) == 20) == space_again


def test_lines_beyond_the_memory_for_them_are_counted_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "MOST_WAITING", 3000)
    with watching(tmp_path) as watch:
        for number in range(10):
            ask(watch, number)
        assert value(watch, "gristmill_audit_lost_total") == 6
    assert len(lines(tmp_path)) == 4


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't be opened"), watching(tmp_path / "file"):
        pass
    (tmp_path / "audit-salt").write_bytes(b"short")
    with pytest.raises(StoreError, match="not the salt"), watching(tmp_path):
        pass


def test_processes_that_start_together_share_the_salt(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.tasks.serve.watch.report import ask, watching\n"
        "with watching(Path(sys.argv[1])) as watch: ask(watch)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, tmp_path]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0] * 2
    found = lines(tmp_path)
    assert len(found) == 2
    assert len({line["prompt_hmac"] for line in found}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit", "audit-salt"]


def test_an_audit_log_can_be_left_out_but_not_required_then(tmp_path: Path) -> None:
    with watching(tmp_path, audit={"enabled": False}) as watch:
        ask(watch)
        assert not watch.refusing
        assert watch.status()["audit"] == {"enabled": False, "failing": False, "lost": 0.0}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValidationError, match=r"need audit\.enabled"):
        WatchConfig.model_validate({"audit": {"enabled": False, "required": True}})


def test_a_long_name_of_a_model_does_not_bloat_the_log(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        ask(watch, model="m" * 1_000_000)
        assert not [labels for _, labels in samples(watch) if len(str(labels)) > 1000]
    assert len(lines(tmp_path)[0]["model"]) == 100


def test_the_writer_ends_with_the_process(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal; from pathlib import Path; from tests.tasks.serve.watch.report import ask, watching\n"
        "with watching(Path(sys.argv[1])) as watch: ask(watch); os.kill(os.getpid(), signal.SIGINT); signal.pause()"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, timeout=30)
    assert done.returncode == -signal.SIGINT
    assert len(lines(tmp_path)) == 1
    assert os.listdir(tmp_path / "audit")
