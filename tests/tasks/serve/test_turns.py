"""The queue before an engine: no turn is lost, keys take turns, and it is bounded in length and time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.serve.turns import QueueFull, Turns, Waited

KEYS = "abc"
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "end", "leave"]), st.integers(0, 9), st.integers(0, 3)), max_size=40
)  # what happens, to which key or request, and how many steps of the loop pass before the next


class Crowd:
    """Clients of one queue. `granted` are the requests that got a turn, in order, each a key and a number."""

    def __init__(self, slots: int, longest: int) -> None:
        self.turns = Turns(slots, longest, 60.0)
        self.granted: list[tuple[str, int]] = []
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.ended: dict[tuple[str, int], asyncio.Event] = {}
        self.left: set[tuple[str, int]] = set()

    def ask(self, key: str) -> None:
        name = key, len(self.tasks)
        self.ended[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._request(*name))

    async def _request(self, key: str, number: int) -> None:
        async with self.turns.turn(key):
            self.granted.append((key, number))
            await self.ended[key, number].wait()

    def running(self) -> list[tuple[str, int]]:
        return [name for name in self.granted if not self.tasks[name].done()]

    def end(self, which: int) -> None:
        if running := self.running():
            self.ended[running[which % len(running)]].set()

    def leave(self, which: int) -> None:
        if going := [name for name, task in self.tasks.items() if not task.done() and name not in self.left]:
            name = going[which % len(going)]
            self.tasks[name].cancel()
            self.left.add(name)

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(0, 6), ACTIONS)
def test_no_turn_is_lost_whoever_leaves_at_whatever_moment(
    slots: int, longest: int, actions: list[tuple[str, int, int]]
) -> None:
    async def live() -> None:
        crowd = Crowd(slots, longest)
        for what, which, steps in actions:
            {"ask": lambda n: crowd.ask(KEYS[n % 3]), "end": crowd.end, "leave": crowd.leave}[what](which)
            for _ in range(steps):
                await asyncio.sleep(0)
                assert crowd.turns.running <= slots
                assert crowd.turns.waiting <= longest
        await crowd.settle()
        assert crowd.turns.running == len(crowd.running())
        assert crowd.turns.running == slots or not crowd.turns.waiting
        for event in crowd.ended.values():
            event.set()
        done = await asyncio.gather(*crowd.tasks.values(), return_exceptions=True)
        assert (crowd.turns.running, crowd.turns.waiting) == (0, 0)
        for (name, task), outcome in zip(crowd.tasks.items(), done, strict=True):
            assert task.cancelled() == (name in crowd.left)
            assert name in crowd.granted or task.cancelled() or isinstance(outcome, QueueFull)

    asyncio.run(live())


@settings(deadline=None)
@given(st.integers(1, 3), st.lists(st.sampled_from(["end", *KEYS, *KEYS]), max_size=60))
def test_while_a_key_waits_another_gets_one_turn_before_it(slots: int, actions: list[str]) -> None:
    async def live() -> None:
        crowd = Crowd(slots, 100)
        passed: dict[str, Counter[str]] = {}  # by a key that waits: the turns of others since it came, or its own last
        for what in actions:
            before = len(crowd.granted)
            crowd.end(0) if what == "end" else crowd.ask(what)
            await crowd.settle()
            for key, _ in crowd.granted[before:]:
                passed.pop(key, None)
                for counted in passed.values():
                    counted[key] += 1
            waiting = {key for key, number in crowd.tasks if (key, number) not in crowd.granted}
            passed = {key: passed.get(key, Counter()) for key in waiting}
            assert all(counted.total() == len(counted) for counted in passed.values())
        for key in KEYS:
            of_key = [number for name, number in crowd.granted if name == key]
            assert of_key == sorted(of_key), "a key's requests keep their order"
        for event in crowd.ended.values():
            event.set()
        await asyncio.gather(*crowd.tasks.values())

    asyncio.run(live())


def test_a_client_that_leaves_as_its_turn_comes_gets_none() -> None:
    async def live() -> None:
        turns, got = Turns(1, 8, 5.0), []

        async def request() -> None:
            async with turns.turn("late"):
                got.append("late")

        async with turns.turn("first"):
            late = asyncio.create_task(request())
            await asyncio.sleep(0.01)
        late.cancel()  # the turn was given, and the task doesn't know yet
        with pytest.raises(asyncio.CancelledError):
            await late
        assert (got, turns.running) == ([], 0)

    asyncio.run(live())


def test_beyond_its_length_the_queue_refuses_and_beyond_its_time_it_gives_up() -> None:
    async def live() -> None:
        turns = Turns(1, 1, 0.05)
        async with turns.turn("a"):
            began = time.monotonic()
            waiting = asyncio.create_task(turns.turn("b").__aenter__())
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await turns.turn("c").__aenter__()
            with pytest.raises(Waited):
                await waiting
            assert time.monotonic() - began >= 0.05
            assert (turns.running, turns.waiting) == (1, 0)
        async with turns.turn("b"):
            assert turns.running == 1

    asyncio.run(live())


def test_a_turn_that_comes_as_the_time_is_up_goes_to_the_next() -> None:
    async def live() -> None:
        turns, loop = Turns(1, 8, 0.5), asyncio.get_running_loop()
        held, following = turns.turn("a"), turns.turn("c")
        await held.__aenter__()

        def give_back() -> None:
            with contextlib.suppress(StopIteration):
                held.__aexit__(None, None, None).send(None)

        late = asyncio.create_task(turns.turn("b").__aenter__())
        loop.call_later(0.45, time.sleep, 0.1)  # the loop is late: the next two come in the same step
        loop.call_later(0.46, give_back)  # to b, whose time is up then
        await asyncio.sleep(0.4)
        waits = asyncio.create_task(following.__aenter__())
        with pytest.raises(Waited):
            await late
        await waits
        assert turns.running == 1
        await following.__aexit__(None, None, None)
        assert turns.running == 0

    asyncio.run(live())


def test_the_pace_of_the_last_turns_says_when_to_come_again() -> None:
    async def live() -> None:
        turns = Turns(1, 8, 5.0)
        assert turns.retry_after() == 1.0
        for _ in range(3):
            async with turns.turn("a"):
                pass
        assert 1.0 <= turns.retry_after() <= 60.0

    asyncio.run(live())
