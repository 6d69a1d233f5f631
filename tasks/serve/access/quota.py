"""Whether a request fits a key's limits, as arithmetic: both ledgers use it.

Times are whole microseconds and money is whole nano-dollars, so no sum has an error of rounding. A request reserves its
prompt and the longest answer that it may have. Settling returns the unused part. A budget that is too small for the
longest answer shortens it, while a rate limit delays the request: only a request that a whole minute can't hold is
shortened by its rate limit too.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
from functools import lru_cache

from tasks.serve.access.config import DOLLAR, BudgetPeriod, Limits

SECOND = 1_000_000
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE
Window = Callable[[], Iterable[tuple[int, int]]]  # each request of the last minute, oldest first: (time, tokens)
SOON = 1.0  # seconds until a running request may have ended


class AccessRefused(Exception):
    """A request that is not admitted, as an HTTP status and OpenAI's code, with one sentence for the client.

    `retry_after` is in seconds, or None if waiting doesn't help.
    """

    def __init__(self, status: int, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens."""

    prompt: float
    completion: float

    def nano(self, prompt_tokens: int, completion_tokens: int) -> Decimal:
        """The exact price of these tokens in nano-dollars."""
        return (_decimal(self.prompt) * prompt_tokens + _decimal(self.completion) * completion_tokens) * 1000

    def charge(self, prompt_tokens: int, completion_tokens: int) -> int:
        """The price of these tokens in whole nano-dollars."""
        return int(self.nano(prompt_tokens, completion_tokens).to_integral_value(ROUND_HALF_UP))


@dataclass(frozen=True)
class Ask:
    """The tokens that a request needs: its prompt, and the longest answer that it asks for."""

    prompt: int
    completion: int
    price: Price


@dataclass(frozen=True)
class Usage:
    """The state of a key's counters."""

    requests: int  # admitted in the last minute
    tokens: int  # of these requests, used or reserved
    running: int
    reserved_tokens: int  # by running requests that this period's budget pays for
    reserved_nano: int
    spent_tokens: int  # of this period's budget
    spent_nano: int


@dataclass(frozen=True)
class Grant:
    """The tokens and money that an admitted request reserves. `tokens_left` is its longest answer, None if any."""

    tokens_left: int | None
    tokens: int
    nano: int


@dataclass(frozen=True)
class Period:
    """A period of budgets that begins at `start` and ends before `end`, both in UTC."""

    label: str
    start: int
    end: int | None


def period(kind: BudgetPeriod, now: int) -> Period:
    """The budget period of a time."""
    return _period(kind, now // DAY)


@lru_cache(16)
def _period(kind: BudgetPeriod, day: int) -> Period:
    if kind == "day":
        return Period(f"{_date(day):%Y-%m-%d}", day * DAY, (day + 1) * DAY)
    if kind == "month":
        first = day - _date(day).day + 1
        following = first + monthrange(_date(day).year, _date(day).month)[1]
        return Period(f"{_date(day):%Y-%m}", first * DAY, following * DAY)
    return Period("total", 0, None)


def _date(day: int) -> date:
    return date(1970, 1, 1) + timedelta(days=day)


def grant(limits: Limits, usage: Usage, ask: Ask, now: int, window: Window) -> Grant:
    """Admit a request, or raise AccessRefused. `window` is read only for a refusal."""
    least = min(1, ask.completion)
    completion = _within_budgets(limits, usage, ask, least, now)
    per_minute = limits.tokens_per_minute
    if per_minute is not None:
        if ask.prompt + least > per_minute:
            needed = f"the request needs at least {ask.prompt + least:,}"
            raise _too_fast(f"The key's limit is {per_minute:,} tokens a minute, and {needed}.", None)
        completion = min(completion, per_minute - ask.prompt)
    prompt_and_answer = ask.prompt + completion
    _check_rates(limits, usage, prompt_and_answer, now, window)
    if limits.concurrent is not None and usage.running >= limits.concurrent:
        message = f"The key has {usage.running:,} requests running, and its limit is {limits.concurrent:,}."
        raise _too_fast(message, SOON)
    bounded = (per_minute, limits.budget_tokens, limits.budget_usd) != (None, None, None)
    nano = ask.price.nano(ask.prompt, completion).to_integral_value(ROUND_CEILING)
    return Grant(completion if bounded else None, prompt_and_answer, int(nano))


def _within_budgets(limits: Limits, usage: Usage, ask: Ask, least: int, now: int) -> int:
    """The longest answer that the budgets allow. Raises AccessRefused."""
    completion = ask.completion
    if (total := limits.budget_tokens) is not None:
        free = total - usage.spent_tokens - usage.reserved_tokens
        if free < ask.prompt + least:
            used, needed = f"{usage.spent_tokens:,} of {total:,} tokens", f"{ask.prompt + least:,}"
            raise _over_budget(limits, now, used, needed, total - usage.spent_tokens >= ask.prompt + least)
        completion = min(completion, free - ask.prompt)
    if (money := limits.budget_nano) is not None:
        free = money - usage.spent_nano - usage.reserved_nano
        least_price = ask.price.nano(ask.prompt, least)
        if free < least_price:
            used = f"${Decimal(usage.spent_nano) / DOLLAR:f} of ${Decimal(money) / DOLLAR:f}"
            raise _over_budget(limits, now, used, f"${least_price / DOLLAR:f}", money - usage.spent_nano >= least_price)
        if each := ask.price.nano(0, 1):
            completion = min(completion, int((free - ask.price.nano(ask.prompt, 0)) // each))
    return completion


def _over_budget(limits: Limits, now: int, used: str, needed: str, only_reserved: bool) -> AccessRefused:
    """The refusal of a budget that is spent, or that running requests have reserved."""
    named = {"day": "of the day", "month": "of the month", "total": "in total"}[limits.budget_period]
    request = f"The key's budget {named} has {used} spent, and the request needs at least {needed}"
    if only_reserved:
        return _too_fast(f"{request}, which running requests have reserved.", SOON)
    end = period(limits.budget_period, now).end
    return AccessRefused(429, "insufficient_quota", f"{request}.", None if end is None else (end - now) / SECOND)


def _check_rates(limits: Limits, usage: Usage, needed: int, now: int, window: Window) -> None:
    """Raise AccessRefused with the time until both rate limits allow a request with `needed` tokens."""
    requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
    over_requests = requests is not None and usage.requests >= requests
    over_tokens = tokens is not None and usage.tokens + needed > tokens
    if not over_requests and not over_tokens:
        return
    count, total, until = usage.requests, usage.tokens, now
    for at, of_one in window():
        if (requests is None or count < requests) and (tokens is None or total + needed <= tokens):
            break
        count, total, until = count - 1, total - of_one, at + MINUTE
    wait = max(0, until - now) / SECOND
    reached = (
        f"{usage.requests:,} of its {requests:,} requests a minute"
        if over_requests
        else f"{usage.tokens:,} of its {tokens:,} tokens a minute, and the request needs up to {needed:,}"
    )
    raise _too_fast(f"The key has used {reached}: try again in {wait:.1f} seconds.", wait)


def _too_fast(message: str, retry_after: float | None) -> AccessRefused:
    return AccessRefused(429, "rate_limit_exceeded", message, retry_after)


@lru_cache(256)
def _decimal(number: float) -> Decimal:
    return Decimal(str(number))
