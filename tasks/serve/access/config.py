"""The settings of keys: limits, budgets, and where both are counted."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import Field

from tasks.stage.config import StageConfig

MOST = 10**15  # far above any limit in use, and exact in every ledger
DOLLAR = 10**9  # money is counted in whole nano-dollars

BudgetPeriod = Literal["day", "month", "total"]


class Limits(StageConfig):
    """Limits of one key. A key's own limits replace the server's, one by one."""

    requests_per_minute: int | None = Field(
        None, ge=1, le=MOST, description="maximum requests in any 60 seconds (null: no limit)"
    )
    tokens_per_minute: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="maximum tokens in any 60 seconds, of prompts and answers (null: no limit). A running request "
        "counts with all tokens that its answer may have",
    )
    concurrent: int | None = Field(None, ge=1, le=MOST, description="maximum requests at a time (null: no limit)")
    budget_tokens: int | None = Field(
        None, ge=1, le=MOST, description="tokens of a budget period, of prompts and answers (null: no limit)"
    )
    budget_usd: float | None = Field(
        None, gt=0, le=1_000_000, description="US dollars of a budget period, at the server's prices (null: no limit)"
    )
    budget_period: BudgetPeriod = Field(
        "month", description="when budgets start again: every day or month, in UTC, or never (total)"
    )
    models: list[str] | None = Field(None, min_length=1, description="names of the models to allow (null: all)")

    @property
    def budget_nano(self) -> int | None:
        """The budget of money in nano-dollars."""
        return None if self.budget_usd is None else int(Decimal(str(self.budget_usd)) * DOLLAR)


class LimitsConfig(Limits):
    """Limits of every key without limits of its own, and of requests without a key."""

    keyless: bool = Field(
        True, description="answer requests of this machine (loopback) without a key. All others always need one"
    )
    ledger: str | None = Field(
        None,
        pattern=r"^rediss?://[^@]+$",
        description="URL of a Redis server, such as redis://host:6379/0, that several hosts share for keys and counts. "
        "Its clocks and theirs must agree (NTP), and it must write to its disk (appendonly). null: a SQLite file that "
        "the processes of one host share",
    )
    ledger_password_env: str | None = Field(
        None, description="environment variable that holds the password of Redis (null: none)"
    )
