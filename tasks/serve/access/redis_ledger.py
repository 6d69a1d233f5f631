"""The ledger in Redis, which several hosts share.

Every step is a Lua script, which Redis runs as one. To admit, one script reads a key's counters, `quota` decides, and a
second script reserves if the counters still have the version that was read. Otherwise the request is decided again.
The client repeats a script whose answer was lost, so each may run twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from storage.errors import ConfigError, StoreError
from tasks.serve.access.config import Limits
from tasks.serve.access.keys import Key
from tasks.serve.access.ledger import LEASE, Request, name_taken
from tasks.serve.access.quota import MINUTE, Ask, Grant, Usage, grant, period

TIMEOUT_SECONDS = 2.0
ATTEMPTS = 200
NUMBERS = ("created", "expires", "revoked", "used")

# `window:KEY` has the times of requests, `weight:KEY` their tokens, `use:KEY` the sum of these and a version.
# `running:KEY` has time, tokens and money of running requests, and `held:PROCESS` their names. The braces put all keys
# on one node of a cluster
COMMON = """
local P = '{gristmill}:'
local function free(key, id, tokens)
  redis.call('HDEL', P..'running:'..key, id)
  local weight = redis.call('HGET', P..'weight:'..key, id)
  if weight then
    redis.call('HINCRBY', P..'use:'..key, 'tokens', tokens - weight)
    redis.call('HSET', P..'weight:'..key, id, tokens)
  end
  redis.call('HINCRBY', P..'use:'..key, 'version', 1)
end
local function leave(process)
  for _, held in ipairs(redis.call('SMEMBERS', P..'held:'..process)) do
    local key, id = string.match(held, '^(%S+) (%S+)$')
    free(key, id, 0)
  end
  redis.call('DEL', P..'held:'..process)
  redis.call('ZREM', P..'processes', process)
end
"""
ADD = """
local holder = redis.call('HGET', P..'names', ARGV[2])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('HSET', P..'names', ARGV[2], ARGV[1])
redis.call('SADD', P..'keys', ARGV[1])
for i = 3, #ARGV, 2 do redis.call('HSET', P..'key:'..ARGV[1], ARGV[i], ARGV[i + 1]) end
return 1
"""
FIND = "return redis.call('HGETALL', P..'key:'..ARGV[1])"
LIST = "return redis.call('SMEMBERS', P..'keys')"
REVOKE = """
local key = P..'key:'..ARGV[1]
if redis.call('HGET', key, 'revoked') ~= '' then return end
redis.call('HSET', key, 'revoked', ARGV[2])
redis.call('HDEL', P..'names', redis.call('HGET', key, 'name'))
"""
SPENT = """
local spent = P..'spent:'..ARGV[1]
return {redis.call('HGET', spent, ARGV[2]..' tokens') or '0', redis.call('HGET', spent, ARGV[2]..' nano') or '0'}
"""
READ = """
local key, since, start, label = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local window, weight, use = P..'window:'..key, P..'weight:'..key, P..'use:'..key
for _, id in ipairs(redis.call('ZRANGEBYSCORE', window, '-inf', since)) do
  redis.call('HINCRBY', use, 'tokens', -redis.call('HGET', weight, id))
  redis.call('HDEL', weight, id)
  redis.call('ZREM', window, id)
end
local count, tokens, nano = 0, 0, 0
local running = redis.call('HGETALL', P..'running:'..key)
for i = 2, #running, 2 do
  local at, reserved, money = string.match(running[i], '^(%d+) (%d+) (%d+)$')
  count = count + 1
  if tonumber(at) >= start then tokens, nano = tokens + reserved, nano + money end
end
local spent = P..'spent:'..key
return {
  redis.call('HGET', use, 'version') or '0', redis.call('ZCARD', window), redis.call('HGET', use, 'tokens') or '0',
  count, tokens, nano,
  redis.call('HGET', spent, label..' tokens') or '0', redis.call('HGET', spent, label..' nano') or '0'
}
"""
WINDOW = """
local found = redis.call('ZRANGE', P..'window:'..ARGV[1], 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do found[i] = redis.call('HGET', P..'weight:'..ARGV[1], found[i]) end
return found
"""
RESERVE = """
local version, key, id, at, tokens, nano, process = unpack_arguments
if redis.call('HEXISTS', P..'running:'..key, id) == 1 then return 1 end
if (redis.call('HGET', P..'use:'..key, 'version') or '0') ~= version then return 0 end
redis.call('HINCRBY', P..'use:'..key, 'version', 1)
redis.call('HINCRBY', P..'use:'..key, 'tokens', tokens)
redis.call('HSET', P..'weight:'..key, id, tokens)
redis.call('ZADD', P..'window:'..key, at, id)
redis.call('HSET', P..'running:'..key, id, at..' '..tokens..' '..nano)
redis.call('SADD', P..'held:'..process, key..' '..id)
if redis.call('HEXISTS', P..'key:'..key, 'id') == 1 then redis.call('HSET', P..'key:'..key, 'used', at) end
return 1
""".replace("unpack_arguments", ", ".join(f"ARGV[{number}]" for number in range(1, 8)))
SETTLE = """
local key, id, process, tokens, nano = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if not redis.call('SET', P..'settled:'..id, '1', 'NX', 'EX', '3600') then return end
free(key, id, tokens)
redis.call('SREM', P..'held:'..process, key..' '..id)
for i = 6, #ARGV do
  redis.call('HINCRBY', P..'spent:'..key, ARGV[i]..' tokens', tokens)
  redis.call('HINCRBY', P..'spent:'..key, ARGV[i]..' nano', nano)
end
"""
BEAT = """
redis.call('ZADD', P..'processes', ARGV[2], ARGV[1])
for _, process in ipairs(redis.call('ZRANGEBYSCORE', P..'processes', '-inf', ARGV[3])) do leave(process) end
"""
LEAVE = "leave(ARGV[1])"


def connect(url: str, password_variable: str | None) -> redis.Redis:
    """A client of the Redis server at a URL. Raises ConfigError if the URL or the variable can't be used."""
    password = None if password_variable is None else os.environ.get(password_variable)
    if password_variable is not None and not password:
        raise ConfigError(
            f"limits.ledger_password_env names {password_variable}, which is not set.",
            f"Set {password_variable} in the server's environment.",
        )
    try:
        return redis.Redis.from_url(
            url, password=password, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        )
    except ValueError as error:
        raise ConfigError(f"limits.ledger: {error}.", "Give a URL such as redis://host:6379/0.") from error


class RedisLedger:
    """Keys and counts in Redis. `client` is one of the package `redis`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._scripts: dict[str, Any] = {}
        self._run(LIST)

    def add(self, key: Key) -> None:
        texts = {"salt": key.salt.hex(), "digest": key.digest.hex(), "name": key.name, "limits": key.limits}
        numbers = {name: "" if (value := getattr(key, name)) is None else value for name in NUMBERS}
        fields = {"id": key.id, **texts, **numbers}
        if not self._run(ADD, key.id, key.name, *(one for pair in fields.items() for one in pair)):
            raise name_taken(key.name)

    def find(self, identity: str) -> Key | None:
        found = iter(self._run(FIND, identity))
        fields = {name.decode(): value.decode() for name, value in zip(found, found, strict=True)}
        if "id" not in fields:
            return None
        numbers = {name: int(fields[name]) if fields[name] else None for name in NUMBERS}
        binary = {name: bytes.fromhex(fields[name]) for name in ("salt", "digest")}
        return Key(**(fields | numbers | binary))

    def all_keys(self) -> list[Key]:
        found = (self.find(identity.decode()) for identity in self._run(LIST))
        return sorted((key for key in found if key is not None), key=lambda key: (key.created, key.id))

    def revoke(self, identity: str, now: int) -> None:
        self._run(REVOKE, identity, now)

    def spent(self, key: str, label: str) -> tuple[int, int]:
        tokens, nano = self._run(SPENT, key, label)
        return int(tokens), int(nano)

    def admit(self, request: Request, limits: Limits, ask: Ask) -> Grant:
        key, now = request.key, request.at
        current = period(limits.budget_period, now)
        for _ in range(ATTEMPTS):
            version, *counts = self._run(READ, key, now - MINUTE, current.start, current.label)
            granted = grant(limits, Usage(*map(int, counts)), ask, now, lambda: self._window(key))
            row = (key, request.id, now, granted.tokens, granted.nano, request.process)
            if self._run(RESERVE, version, *row):
                return granted
        raise StoreError(f"Key {key} is used faster than Redis can count.", "Try again.")

    def _window(self, key: str) -> Iterator[tuple[int, int]]:
        found = iter(self._run(WINDOW, key))
        return ((int(at), int(tokens)) for tokens, at in zip(found, found, strict=True))

    def settle(self, request: Request, tokens: int, nano: int) -> None:
        self._run(SETTLE, request.key, request.id, request.process, tokens, nano, *request.periods())

    def beat(self, process: str, now: int) -> None:
        self._run(BEAT, process, now, now - LEASE)

    def leave(self, process: str, now: int) -> None:
        self._run(LEAVE, process)

    def close(self) -> None:
        self._client.close()

    def _run(self, script: str, *arguments: object) -> Any:
        with _faults():
            if script not in self._scripts:
                self._scripts[script] = self._client.register_script(COMMON + script)
            return self._scripts[script](args=arguments)


@contextmanager
def _faults() -> Iterator[None]:
    """Turn errors of Redis and of the network into StoreErrors."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise StoreError(
            f"Redis can't be used: {error}.", "Check that it runs, limits.ledger and limits.ledger_password_env."
        ) from error
