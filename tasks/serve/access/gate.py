"""Admits requests by key, and settles them. One `Access` per process. Several share a ledger.

One thread of the process uses the ledger, another computes digests. So the event loop never waits for a disk, for
another process or for scrypt. A secret is digested on its first request. Later requests compare its SHA-256 with those
known here and read the key again, so a revoked or expired key is refused at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from functools import lru_cache
from hmac import compare_digest
from pathlib import Path
from typing import TypeVar

from storage.errors import StoreError
from tasks.serve.access.config import DOLLAR, Limits, LimitsConfig
from tasks.serve.access.keys import FORM, PREFIX, Key, digest_of
from tasks.serve.access.ledger import BEAT_SECONDS, Request
from tasks.serve.access.open import open_ledger
from tasks.serve.access.quota import SECOND, SOON, AccessRefused, Ask, Price

LOCAL = "local"  # the public id of requests without a key
MAX_CHECKS = 16  # digests that may be computed or wait: 0.2 seconds
INVALID = "This key isn't valid."
MISSING = "This server needs a key: send it as `Authorization: Bearer KEY`."
log = logging.getLogger(__name__)
T = TypeVar("T")


class Access:
    """Keys, limits and budgets of a server. `folder` is its state folder, which only its user may open."""

    def __init__(self, config: LimitsConfig, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock
        self._ledger = open_ledger(config, folder)
        self._process = secrets.token_hex(8)
        self._verified: set[bytes] = set()  # SHA-256 of keys whose secret is right
        self._checks: dict[tuple[str, bytes], asyncio.Future[bytes]] = {}  # of secrets, with their salts
        self._fault: StoreError | None = None  # the ledger's, until it works again
        self._unbooked: list[tuple[Request, int, int]] = []
        self._counter = ThreadPoolExecutor(1, "ledger")
        self._digester = ThreadPoolExecutor(1, "scrypt")
        self._limits = lru_cache(10_000)(self._merged)
        self._ledger.beat(self._process, self._now())
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._keep_beating, name="heart", daemon=True)
        self._heart.start()

    async def identify(self, presented: str | None, *, local: bool) -> str:
        """The public id of a key, for a request that uses no tokens. Raises AccessRefused."""
        holder = await self._verify(presented, local)
        return LOCAL if holder is None else (await self._run(lambda: self._read(holder))).id

    async def admit(
        self, presented: str | None, *, prompt_tokens: int, max_tokens: int, model: str, price: Price, local: bool
    ) -> Admission:
        """Admit a request and reserve its tokens and money, or raise AccessRefused.

        `presented` is the bearer token. Where the configuration allows requests without a key, anything that doesn't
        begin like one of our keys counts as none, as clients send placeholders.
        """
        holder = await self._verify(presented, local)
        ask = Ask(prompt_tokens, max_tokens, price)
        future = self._counter.submit(self._try, lambda: self._enter(holder, ask, model))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:  # the client left, and nobody else settles what is being admitted
            future.add_done_callback(_settle_unused)
            raise

    async def names(self) -> dict[str, str]:
        """The holders' names by the public ids of their keys."""
        return await self._run(lambda: {key.id: key.name for key in self._ledger.all_keys()})

    def close(self) -> None:
        """Finish bookings and free the ledger."""
        self._closing.set()
        self._heart.join()
        self._counter.submit(self._leave)
        self._counter.shutdown()
        self._digester.shutdown()
        self._ledger.close()

    async def _verify(self, presented: str | None, local: bool) -> str | None:
        """The id of a key whose secret is right, None for a request that needs no key. Raises AccessRefused."""
        match = FORM.fullmatch(presented or "")
        if match is None or presented is None:
            if local and self._config.keyless and not (presented or "").startswith(PREFIX):
                return None
            raise _unauthorized(INVALID if presented else MISSING)
        identity, secret = match.groups()
        seen = hashlib.sha256(presented.encode()).digest()
        if seen not in self._verified:
            key = await self._run(lambda: self._ledger.find(identity))
            if key is None or not compare_digest(await self._digest(secret, key.salt), key.digest):
                raise _unauthorized(INVALID)
            self._verified.add(seen)
        return identity

    async def _digest(self, secret: str, salt: bytes) -> bytes:
        """The digest of a secret. Requests with the same one, as a new key's first ones, share it."""
        check = self._checks.get((secret, salt))
        if check is None:
            if len(self._checks) >= MAX_CHECKS:
                raise AccessRefused(429, "rate_limit_exceeded", f"{MAX_CHECKS} new keys are being checked.", SOON)
            check = asyncio.get_running_loop().run_in_executor(self._digester, digest_of, secret, salt)
            self._checks[secret, salt] = check
            check.add_done_callback(lambda _: self._checks.pop((secret, salt)))
        return await asyncio.shield(check)

    def _enter(self, holder: str | None, ask: Ask, model: str) -> Admission:
        key = None if holder is None else self._read(holder)
        limits = self._limits("{}" if key is None else key.limits)
        if limits.models is not None and model not in limits.models:
            raise AccessRefused(403, "model_not_found", f"This key may use {', '.join(limits.models)}, not {model}.")
        if limits.budget_usd is not None and not (ask.price.prompt or ask.price.completion):
            raise AccessRefused(
                403, "model_without_price", f"This key has a budget in dollars, and {model} has no price."
            )
        request = Request(secrets.randbits(63), LOCAL if key is None else key.id, self._now(), self._process)
        try:
            granted = self._ledger.admit(request, limits, ask)
        except StoreError:
            self._unbooked.append((request, 0, 0))  # it may have reserved
            raise
        return Admission(self, request, ask.price, granted.tokens_left)

    def _read(self, identity: str) -> Key:
        """A key that is active now. Raises AccessRefused."""
        key = self._ledger.find(identity)
        if key is None:
            raise _unauthorized(INVALID)
        state = key.state(self._now())
        if state == "expired" and key.expires is not None:
            raise _unauthorized(
                f"This key expired on {datetime.fromtimestamp(key.expires / SECOND, UTC):%F at %T} UTC."
            )
        if state != "active":
            raise _unauthorized("This key was revoked.")
        return key

    def _merged(self, own: str) -> Limits:
        limits = self._config.model_dump(include=set(Limits.model_fields))
        return Limits(**limits | Limits.model_validate_json(own).model_dump(exclude_unset=True))

    def book(self, request: Request, tokens: int, nano: int) -> Future[None]:
        """Book what a request used, in the ledger's thread. A ledger that can't be used gets it later."""
        return self._counter.submit(self._book, request, tokens, nano)

    def _book(self, request: Request, tokens: int, nano: int) -> None:
        self._unbooked.append((request, tokens, nano))
        self._catch_up()

    def _catch_up(self) -> None:
        """Book what is left to book."""
        try:
            while self._unbooked:
                self._ledger.settle(*self._unbooked[-1])
                self._unbooked.pop()
        except StoreError as error:
            self._fault = error
            log.error("%s requests are not booked yet: %s", len(self._unbooked), error)

    def _beat(self) -> None:
        try:
            self._ledger.beat(self._process, self._now())
            self._fault = None
        except StoreError as error:
            log.error("%s", error)
            return
        self._catch_up()

    def _leave(self) -> None:
        self._beat()
        try:
            self._ledger.leave(self._process, self._now())
        except StoreError as error:
            log.error("%s", error)

    def _keep_beating(self) -> None:
        while not self._closing.wait(BEAT_SECONDS):
            self._counter.submit(self._beat)

    def _now(self) -> int:
        return int(self._clock() * SECOND)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._counter, self._try, work)

    def _try(self, work: Callable[[], T]) -> T:
        """Use the ledger. After a failure, which may take seconds, fail at once until a beat finds it working."""
        if self._fault is not None:
            raise StoreError(self._fault.message, self._fault.remedy)
        try:
            return work()
        except StoreError as error:
            self._fault = error
            raise


class Admission:
    """An admitted request. `tokens_left` is the longest answer that its limits allow, None if they allow any."""

    def __init__(self, access: Access, request: Request, price: Price, tokens_left: int | None) -> None:
        self.key = request.key
        self.tokens_left = tokens_left
        self._access, self._request, self._price = access, request, price
        self._booked: Future[None] | None = None
        self._nano = 0

    def settle(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Book what was sent, free the request's slot and what it didn't use, and return its cost in US dollars.

        Call it for every admission, however the request ended. Further calls change nothing. It never waits: the
        ledger's thread books.
        """
        if self._booked is None:
            self._nano = self._price.charge(prompt_tokens, completion_tokens)
            self._booked = self._access.book(self._request, prompt_tokens + completion_tokens, self._nano)
        return self._nano / DOLLAR

    async def booked(self) -> None:
        """Wait until the ledger has what `settle` booked. A client that then sends its next request finds its slot free
        in every process."""
        if self._booked is not None:
            await asyncio.wrap_future(self._booked)


def _settle_unused(future: Future[Admission]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().settle(0, 0)


def _unauthorized(message: str) -> AccessRefused:
    return AccessRefused(401, "invalid_api_key", message)
