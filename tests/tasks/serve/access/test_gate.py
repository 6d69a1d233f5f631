"""Who is let in: every wrong key is refused in the same words, a revoked one at once, and nothing stays reserved."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from storage.errors import ConfigError, StoreError
from tasks.serve.access import Access, AccessRefused, Admission, Limits, LimitsConfig, Price, gate
from tasks.serve.access.keys import new_key
from tasks.serve.access.ledger import LEASE_SECONDS
from tasks.serve.access.quota import SECOND
from tests.file_systems import read_only, small
from tests.tasks.serve.access.ledgers import open_at

PRICE = Price(1.0, 3.0)
T = TypeVar("T")


@contextmanager
def opened(
    folder: Path, config: LimitsConfig | None = None, clock: Callable[[], float] = time.time
) -> Iterator[Access]:
    access = Access(config or LimitsConfig(), folder, clock=clock)
    try:
        yield access
    finally:
        access.close()


def admit(
    access: Access, key: str | None, prompt: int = 5, longest: int = 10, local: bool = False, model: str = "m"
) -> Coroutine[Any, Any, Admission]:
    return access.admit(key, prompt_tokens=prompt, max_tokens=longest, model=model, price=PRICE, local=local)


async def admit_many(access: Access, key: str) -> None:
    for _ in range(100):
        await admit(access, key)


def make_key(place: str, name: str = "a", expires: float | None = None, **own: Any) -> str:
    key, text = new_key(name, Limits(**own), time.time(), expires)
    ledger = open_at(place)
    ledger.add(key)
    ledger.close()
    return text


def refusal(work: Coroutine[Any, Any, T]) -> AccessRefused:
    with pytest.raises(AccessRefused) as refused:
        asyncio.run(work)
    return refused.value


def test_a_request_is_admitted_settled_once_and_booked(place: str, tmp_path: Path) -> None:
    text = make_key(place, budget_tokens=20, budget_period="total", models=["m"])
    config = LimitsConfig(ledger=place if place.startswith("redis") else None)

    async def ask_twice(access: Access) -> None:
        assert await access.identify(text, local=False) == text[4:12]
        admission = await admit(access, text)
        assert (admission.key, admission.tokens_left) == (text[4:12], 10)
        assert admission.settle(5, 4) == admission.settle(9, 9) == (5 + 3 * 4) / 1e6
        await admission.booked()
        second = await admit(access, text)
        assert second.tokens_left == 20 - 9 - 5
        second.settle(5, 6)
        with pytest.raises(AccessRefused, match="20 of 20 tokens spent"):
            await admit(access, text)

    with opened(tmp_path / "state", config) as access:
        asyncio.run(ask_twice(access))
        assert refusal(admit(access, text, model="another")).status == 403
    assert open_at(place).spent(text[4:12], "total") == (20, 17_000 + 23_000)


@pytest.mark.parametrize(
    "form", ["", "{}x", "{}\n", " {}", "Bearer {}", "\0{}", "{}\0", "gsk-", "gsk-é", "\ud800", "x" * 10**6]
)
def test_hostile_keys_are_refused(tmp_path: Path, form: str) -> None:
    presented = form.replace("{}", make_key(str(tmp_path / "state")))
    with opened(tmp_path / "state") as access:
        began = time.perf_counter()
        refused = refusal(admit(access, presented))
        assert time.perf_counter() - began < 2
    assert (refused.status, refused.code) == (401, "invalid_api_key")
    assert refused.message == (gate.INVALID if form else gate.MISSING)


def test_an_unknown_id_and_a_wrong_secret_get_the_same_answer(tmp_path: Path) -> None:
    text = make_key(str(tmp_path / "state"))
    with opened(tmp_path / "state") as access:
        for wrong in (text[:-1] + ("a" if text[-1] != "a" else "b"), "gsk-00000000" + text[12:]):
            refused = refusal(admit(access, wrong, local=True))  # a key of our form is checked without need, too
            assert (refused.status, refused.message) == (401, gate.INVALID)
        missing = refusal(admit(access, None))
        assert (missing.status, missing.message) == (401, gate.MISSING)


def test_only_the_machine_itself_needs_no_key_and_only_if_allowed(tmp_path: Path) -> None:
    with opened(tmp_path / "state", LimitsConfig(concurrent=1)) as access:
        for presented in (None, "", "EMPTY", "sk-none"):
            admission = asyncio.run(admit(access, presented, local=True))
            assert admission.key == "local"
            assert refusal(admit(access, presented, local=True)).status == 429
            assert refusal(admit(access, presented)).status == 401
            admission.settle(0, 0)
        assert refusal(admit(access, "gsk-cut-off", local=True)).message == gate.INVALID
    with opened(tmp_path / "state", LimitsConfig(keyless=False)) as access:
        assert refusal(admit(access, None, local=True)).message == gate.MISSING


def test_expiry_is_told_to_the_holder_alone(tmp_path: Path) -> None:
    text, now = make_key(str(tmp_path / "state"), expires=2e9), [2e9 - 0.001]
    with opened(tmp_path / "state", clock=lambda: now[0]) as access:
        asyncio.run(admit(access, text)).settle(1, 1)
        now[0] = 2e9
        expired = refusal(admit(access, text))
        assert (expired.status, expired.message) == (401, "This key expired on 2033-05-18 at 03:33:20 UTC.")
        assert refusal(access.identify(text, local=False)).message == expired.message
        assert refusal(admit(access, text[:-1] + "-")).message == gate.INVALID


def test_a_key_that_another_process_revokes_is_refused_at_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    text = make_key(str(state), name="alice")
    script = "from flows.commands.serve.keys import app; app()"
    with opened(state) as access:
        asyncio.run(admit(access, text)).settle(1, 1)
        subprocess.run([sys.executable, "-c", script, "revoke", "alice", "--state", str(state)], check=True)
        assert refusal(admit(access, text)).message == "This key was revoked."


def test_a_keys_own_limits_replace_the_servers_one_by_one(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    wide, narrow = make_key(state, "wide", concurrent=None), make_key(state, "narrow", tokens_per_minute=20)
    with opened(tmp_path / "state", LimitsConfig(concurrent=1, tokens_per_minute=50)) as access:
        assert [asyncio.run(admit(access, wide)).tokens_left for _ in range(3)] == [10] * 3
        assert "50 tokens a minute" in refusal(admit(access, wide)).message
        assert asyncio.run(admit(access, narrow, longest=100)).tokens_left == 15
        assert "requests running" in refusal(admit(access, narrow, 0, 0)).message


def test_a_secret_is_digested_once_and_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, gone_on, digested = make_key(str(tmp_path / "state")), threading.Event(), list[str]()

    def slow(secret: str, salt: bytes) -> bytes:
        digested.append(secret)
        assert gone_on.wait(10)
        return b""

    async def flood(access: Access) -> None:
        await admit(access, text)
        monkeypatch.setattr(gate, "digest_of", slow)
        wrong = [f"{text[:13]}{index:043d}" for index in range(40)]
        flood = [asyncio.create_task(admit(access, key)) for key in wrong]
        await admit(access, text)  # a known key waits for none of them
        assert text.split("-")[2] not in digested
        async with asyncio.timeout(10):
            while sum(one.done() for one in flood) < 40 - gate.MAX_CHECKS:
                await asyncio.sleep(0.01)
        gone_on.set()
        answers = await asyncio.gather(*flood, return_exceptions=True)
        statuses = [answer.status for answer in answers if isinstance(answer, AccessRefused)]
        assert (statuses.count(401), statuses.count(429)) == (gate.MAX_CHECKS, 40 - gate.MAX_CHECKS)
        assert len(digested) == gate.MAX_CHECKS

    with opened(tmp_path / "state") as access:
        asyncio.run(flood(access))


def test_a_client_that_leaves_while_it_is_admitted_leaves_nothing_reserved(tmp_path: Path) -> None:
    state = tmp_path / "state"
    text = make_key(str(state), concurrent=1)

    async def leave(access: Access) -> None:
        (await admit(access, text)).settle(0, 0)
        for pause in range(30):
            task = asyncio.create_task(admit(access, text))
            await asyncio.sleep(0)
            time.sleep(pause * 2e-5)  # the ledger's thread goes on while this one doesn't
            task.cancel()
            with suppress(asyncio.CancelledError):
                (await task).settle(0, 0)
            for _ in range(1000):
                with suppress(AccessRefused):
                    (await admit(access, text)).settle(0, 0)
                    break
                await asyncio.sleep(0.01)
            else:
                pytest.fail("its slot is still taken")

    with opened(state) as access:
        asyncio.run(leave(access))


def test_what_a_broken_ledger_can_not_book_is_booked_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = tmp_path / "state"
    text = make_key(str(state), budget_period="total")
    with opened(state) as access:
        asyncio.run(admit(access, text))
        admission = asyncio.run(admit(access, text))
        access._ledger._db.execute("PRAGMA query_only = 1")  # type: ignore[attr-defined]
        assert admission.settle(5, 4) == 17 / 1e6
        with pytest.raises(StoreError, match="can't be written"):
            asyncio.run(admit(access, text))
        access._ledger._db.execute("PRAGMA query_only = 0")  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match="can't be written"):  # at once, until a beat finds it working
            asyncio.run(admit(access, text))
        access._counter.submit(access._beat).result()
        assert access._ledger.spent(text[4:12], "total") == (9, 17_000)
        asyncio.run(admit(access, text)).settle(1, 0)
    assert "1 requests are not booked yet" in caplog.text
    assert open_at(str(state)).spent(text[4:12], "total") == (10, 17_000 + 1_000)


def test_a_reservation_whose_answer_was_lost_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = make_key(str(tmp_path / "state"), concurrent=1)
    with opened(tmp_path / "state") as access:
        admit_there = access._ledger.admit

        def lose(*arguments: Any) -> None:
            admit_there(*arguments)
            raise StoreError("Lost.")

        monkeypatch.setattr(access._ledger, "admit", lose)
        with pytest.raises(StoreError, match="Lost"):
            asyncio.run(admit(access, text))
        monkeypatch.undo()
        access._counter.submit(access._beat).result()
        asyncio.run(admit(access, text)).settle(0, 0)


def test_a_process_that_ends_frees_its_slots_and_one_that_lives_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "BEAT_SECONDS", 0.02)
    text, now = make_key(str(tmp_path / "state"), concurrent=1), [2e9]
    with opened(tmp_path / "state", clock=lambda: now[0]) as access:
        asyncio.run(admit(access, text))
        other = open_at(str(tmp_path / "state"))
        for _ in range(3):
            now[0] += LEASE_SECONDS / 2
            for _ in range(1000):
                (seen,) = other._db.execute("SELECT seen FROM processes").fetchone()  # type: ignore[attr-defined]
                if seen == int(now[0] * SECOND):
                    break
                time.sleep(0.01)
        other.beat("another", int(now[0] * SECOND))
        assert refusal(admit(access, text)).status == 429
    with opened(tmp_path / "state", clock=lambda: now[0]) as access:
        asyncio.run(admit(access, text)).settle(0, 0)


def test_the_ledger_is_its_users_alone(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    text = make_key(str(state))
    (state / "serve.sqlite").chmod(0o644)
    with opened(state) as access:
        asyncio.run(admit(access, text)).settle(0, 0)
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.glob("serve.sqlite*")}
        assert files == dict.fromkeys(("serve.sqlite", "serve.sqlite-wal", "serve.sqlite-shm"), 0o600)
        secret = text.split("-")[2].encode()
        assert not any(secret in path.read_bytes() for path in state.iterdir())
    state.chmod(0o750)
    with pytest.raises(StoreError, match="Other users can open"):
        Access(LimitsConfig(), state)


@pytest.mark.parametrize("damage", [b"not a database, for sure" * 50, b"\0"])
def test_a_damaged_ledger_is_a_clear_error(tmp_path: Path, damage: bytes) -> None:
    state = tmp_path / "state"
    make_key(str(state))
    with (state / "serve.sqlite").open("r+b") as file:
        file.seek(0 if len(damage) > 1 else 4096)
        file.write(damage * 100)
    with pytest.raises(StoreError, match=r"serve.sqlite is damaged. Restore it"):
        Access(LimitsConfig(), state)


def test_a_disk_that_is_full_or_read_only_is_a_clear_error(tmp_path: Path) -> None:
    with small(tmp_path / "disk", "300k") as disk:
        text = make_key(str(disk / "state"))
        with opened(disk / "state") as access:
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while filler.write(b"\0" * 4096):
                    pass
            with pytest.raises(StoreError, match=r"disk of .* is full"):
                asyncio.run(admit_many(access, text))
            (disk / "filler").unlink()
            access._counter.submit(access._beat).result()
            asyncio.run(admit(access, text)).settle(1, 1)
    (tmp_path / "closed").mkdir()
    with read_only(tmp_path / "closed"), pytest.raises(StoreError, match="can't be written"):
        Access(LimitsConfig(), tmp_path / "closed" / "state")


def test_redis_that_is_away_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Redis can't be used"):
        Access(LimitsConfig(ledger="redis://127.0.0.1:1"), tmp_path)
    with pytest.raises(ConfigError, match="A_SECRET, which is not set"):
        Access(LimitsConfig(ledger="redis://127.0.0.1:1", ledger_password_env="A_SECRET"), tmp_path)
