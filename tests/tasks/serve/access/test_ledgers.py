"""Ledgers: limits hold exactly, for one process and for several, and nothing that is counted gets lost."""

from __future__ import annotations

import secrets
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.errors import ConfigError
from tasks.serve.access import AccessRefused, Limits, Price
from tasks.serve.access.config import DOLLAR
from tasks.serve.access.keys import digest_of, new_key
from tasks.serve.access.ledger import LEASE, Ledger, Request
from tasks.serve.access.quota import MINUTE, SECOND, Grant
from tests.tasks.serve.access.ledgers import PROCESS, ask, attempt, micros, open_at, request

START = int(datetime(2026, 12, 31, 12, tzinfo=UTC).timestamp()) * SECOND
each_ledger = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
Step = tuple[int, int, int, float, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, SECOND, 7 * SECOND, 59 * SECOND, MINUTE - 1, MINUTE]),  # time that passes before it
        st.integers(0, 30),  # tokens of the prompt
        st.integers(0, 30),  # and of the answer at most
        st.floats(0, 1),  # share of the answer that is sent
        st.booleans(),  # whether it ends at once
    ),
    max_size=25,
)


def said(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def new_name() -> str:
    return secrets.token_hex(4)


@each_ledger
@given(steps=STEPS, requests=st.integers(1, 5), tokens=st.integers(1, 60))
def test_a_moving_window_is_that_of_a_list(ledger: Ledger, steps: list[Step], requests: int, tokens: int) -> None:
    limits = Limits(requests_per_minute=requests, tokens_per_minute=tokens)
    key, now, past = new_name(), START, list[list[int]]()

    def passes(at: int, needed: int) -> bool:
        recent = [used for when, used in past if when > at - MINUTE]
        return len(recent) < requests and sum(recent) + needed <= tokens

    for waited, prompt, completion, share, ends in steps:
        now += waited
        longest = min(completion, tokens - prompt)
        one = request(key, now)
        granted = attempt(ledger, one, limits, ask(prompt, completion))
        if isinstance(granted, AccessRefused):
            assert granted.code == "rate_limit_exceeded"
            if prompt + min(1, completion) > tokens:
                assert granted.retry_after is None
            else:
                assert granted.retry_after is not None
                until = now + round(granted.retry_after * SECOND)
                assert not passes(until - 1, prompt + longest)
                assert passes(until, prompt + longest)
            continue
        assert passes(now, prompt + longest)
        assert granted.tokens_left == longest
        past.append([now, prompt + longest])
        if ends:
            past[-1][1] = prompt + int(longest * share)
            ledger.settle(one, past[-1][1], 0)


@each_ledger
@given(
    steps=STEPS,
    tokens=st.sampled_from([1, 40, 150, 10_000]),
    budget=st.sampled_from([1, 20, 33, 90_001, 10**9]),  # in nano-dollars
    price=st.builds(Price, *[st.sampled_from([0.0, 0.0007, 0.333, 3.0])] * 2),
)
def test_streams_side_by_side_never_overrun_a_budget(
    ledger: Ledger, steps: list[Step], tokens: int, budget: int, price: Price
) -> None:
    limits = Limits(budget_tokens=tokens, budget_usd=budget / DOLLAR, budget_period="total")
    key, running, spent, money = new_name(), list[tuple[Request, int, int, Grant]](), 0, 0
    for index, (_, prompt, completion, share, ends) in enumerate(steps):
        one = request(key, START + index)
        reserved = sum(grant.tokens for *_, grant in running), sum(grant.nano for *_, grant in running)
        free, free_money = tokens - spent - reserved[0], budget - money - reserved[1]
        least = min(1, completion)
        least_price = price.nano(prompt, least)
        granted = attempt(ledger, one, limits, ask(prompt, completion, price))
        if isinstance(granted, AccessRefused):
            assert free < prompt + least or free_money < least_price
            hopeless = spent + prompt + least > tokens or money + least_price > budget
            assert granted.code == ("insufficient_quota" if hopeless else "rate_limit_exceeded")
        else:
            left = granted.tokens_left
            assert left is not None
            assert least <= left <= completion
            assert granted.tokens <= free
            assert price.nano(prompt, left) <= granted.nano <= free_money
            more = left + 1  # the answer is as long as both budgets allow
            assert left == completion or prompt + more > free or price.nano(prompt, more) > free_money
            running.append((one, prompt, int(left * share), granted))
        if ends and running:
            ended, used, sent, _ = running.pop(0)
            ledger.settle(ended, used + sent, price.charge(used, sent))
            spent, money = spent + used + sent, money + price.charge(used, sent)
        assert ledger.spent(key, "total") == (spent, money)
        assert spent <= tokens
        assert money <= budget


def test_a_budget_begins_again_and_a_request_is_paid_in_the_period_that_admitted_it(ledger: Ledger) -> None:
    key, night = new_name(), int(datetime(2026, 12, 31, 23, 59, 50, tzinfo=UTC).timestamp()) * SECOND
    for kind in ("day", "month", "total"):
        limits = Limits(budget_tokens=10, budget_period=kind)
        first = request(key + kind, night)
        assert ledger.admit(first, limits, ask(4, 6)).tokens_left == 6
        with pytest.raises(AccessRefused, match=r"10|reserved") as refused:
            ledger.admit(request(key + kind, night), limits, ask(1, 1))
        assert (refused.value.code, refused.value.retry_after) == ("rate_limit_exceeded", 1.0)
        if kind != "total":  # what runs since yesterday doesn't burden today
            assert ledger.admit(request(key + kind, night + 10 * SECOND), limits, ask(4, 6)).tokens_left == 6
        ledger.settle(first, 10, 5)
        with pytest.raises(AccessRefused, match="10 of 10 tokens spent") as refused:
            ledger.admit(request(key + kind, night + SECOND), limits, ask(1, 1))
        assert refused.value.code == "insufficient_quota"
        assert refused.value.retry_after == (None if kind == "total" else 9.0)
        for label in ("2026-12-31", "2026-12", "total"):
            assert ledger.spent(key + kind, label) == (10, 5)


def test_concurrent_requests_have_slots_until_they_are_settled(ledger: Ledger) -> None:
    key, limits = new_name(), Limits(concurrent=2)
    one, two = request(key, START), request(key, START)
    ledger.admit(one, limits, ask())
    ledger.admit(two, limits, ask())
    with pytest.raises(AccessRefused, match="2 requests running"):
        ledger.admit(request(key, START), limits, ask())
    ledger.admit(request(new_name(), START), limits, ask())
    ledger.settle(one, 0, 0)
    assert ledger.admit(request(key, START), limits, ask(1, 5)).tokens_left is None


def test_a_silent_process_loses_its_slots_but_not_what_it_books_later(ledger: Ledger) -> None:
    key, limits = new_name(), Limits(concurrent=1, budget_tokens=50, tokens_per_minute=50, budget_period="total")
    ledger.beat(PROCESS, START)
    silent = request(key, START)
    ledger.admit(silent, limits, ask(10, 40))
    ledger.beat("another", START + LEASE - 1)
    with pytest.raises(AccessRefused):
        ledger.admit(request(key, START + LEASE - 1, "another"), Limits(concurrent=1), ask(1, 1))
    ledger.beat("another", START + LEASE)
    granted = ledger.admit(request(key, START + LEASE, "another"), limits, ask(10, 40))
    assert granted.tokens_left == 40
    ledger.settle(silent, 12, 7)
    assert ledger.spent(key, "total") == (12, 7)
    ledger.leave("another", START + LEASE)
    assert ledger.admit(request(key, START + LEASE, "another"), limits, ask(10, 40)).tokens_left == 28


def test_a_process_that_ends_takes_back_nothing_that_was_settled(ledger: Ledger) -> None:
    key, limits = new_name(), Limits(tokens_per_minute=10)
    ledger.beat(PROCESS, START)
    settled = request(key, START)
    ledger.admit(settled, limits, ask(3, 7))
    ledger.settle(settled, 10, 0)
    ledger.leave(PROCESS, START)
    with pytest.raises(AccessRefused, match="10 of its 10 tokens a minute"):
        ledger.admit(request(key, START), limits, ask(1, 0))


def test_keys_are_kept_and_revoked_once(ledger: Ledger) -> None:
    key, text = new_key("Zoë 1", Limits(concurrent=3, budget_usd=None), 1.5, expires=9.25)
    ledger.add(key)
    assert ledger.find(key.id) == key
    assert ledger.find("00000000") is None
    assert key.digest == digest_of(text.split("-")[2], key.salt)
    with pytest.raises(ConfigError, match="called Zoë 1"):
        ledger.add(new_key("Zoë 1", Limits(), 2)[0])
    ledger.admit(request(key.id, 3 * SECOND), Limits(), ask())
    ledger.revoke(key.id, 4 * SECOND)
    ledger.revoke(key.id, 5 * SECOND)
    second, _ = new_key("Zoë 1", Limits(), 2)
    ledger.add(second)
    revoked, other = ledger.all_keys()
    assert (revoked.used, revoked.revoked, revoked.state(0)) == (3 * SECOND, 4 * SECOND, "revoked")
    assert other == second
    assert [second.state(0), key.state(9_249_999), key.state(9_250_000)] == ["active", "active", "expired"]
    assert revoked.own_limits().model_dump(exclude_unset=True) == {"concurrent": 3, "budget_usd": None}


def test_processes_together_admit_no_more_than_the_limit_and_a_kill_frees_their_slots(place: str) -> None:
    most = {  # of requests with 7 tokens, of which 3 are the prompt
        '{"requests_per_minute":300}': 300,
        '{"tokens_per_minute":1400}': 200,
        '{"concurrent":200}': 200,
        '{"budget_tokens":1400}': 200,
    }
    ledger = open_at(place)
    command = [sys.executable, "-m", "tests.tasks.serve.access.ledgers", place, "250", *most]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        assert [said(process) for process in processes] == [b"ready\n"] * 3
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        counts = {key: sum(int(said(process)) for process in processes) for key in most}
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert counts == most
    for wait, freed in ((0, []), (LEASE, [key for key in most if "requests" not in key])):
        now = micros() + wait
        ledger.beat(PROCESS, now)
        answers = {key: attempt(ledger, request(key, now), Limits.model_validate_json(key), ask(3, 4)) for key in most}
        assert [key for key, answer in answers.items() if not isinstance(answer, AccessRefused)] == freed
