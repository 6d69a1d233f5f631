"""Programs in answers, rewarded by tests: those that attack the sandbox earn nothing, and nothing else happens."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError
from tasks.posttrain.rewards.config import ProgramReward
from tasks.posttrain.rewards.outside import check_rows
from tasks.posttrain.rewards.score import Answer
from tasks.posttrain.rewards.unit_tests import PassedTests, program_in, sources_of
from tests.tasks.posttrain.test_own_rewards import rows
from tests.tasks.sandbox.attacks import named, new_name, processes

LIMITS = {"seconds": 1.0, "memory_mb": 256, "files_mb": 1}
TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add(0.5, 1) == 1.5", "assert add('a', 'b') == 'ab'"]
RIGHT = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nGood luck!"
WHOLE = "def add(a, b):\n    return int(a) + int(b)"


@pytest.fixture(scope="module")
def passed() -> Iterator[PassedTests]:
    with (made := PassedTests(ProgramReward.model_validate({"sandbox": LIMITS}))).sandbox:
        yield made


def answers(*texts: str, tests: Any = TESTS) -> list[Answer]:
    return [Answer([], text, 1, "", {"tests": tests} if tests else {}) for text in texts]


def test_a_program_earns_what_its_tests_say(passed: PassedTests) -> None:
    wrong = RIGHT.replace("a + b", "a - b")
    assert passed(answers(RIGHT, wrong, WHOLE, "I can't.", "")) == [1, 0, 0, 0, 0]
    assert passed([*answers(RIGHT, tests="assert add(1, 2) == 3"), *answers(RIGHT, tests=None)]) == [1, None]
    shared = PassedTests(ProgramReward.model_validate({"sandbox": LIMITS, "credit": "share"}))
    with shared.sandbox:
        assert shared(answers(RIGHT, wrong, WHOLE)) == [1, 0, 0.5]


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("x = 1", "x = 1"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("First\n```python\nx = 1\n```\nbetter\n```py\nx = 2\n\ny = 3\n```\ndone", "x = 2\n\ny = 3\n"),
        ("~~~\nx = '```'\n~~~", "x = '```'\n"),
        ("cut:\n```python\nx = 1\ny = ", "x = 1\ny = "),
        ("````\n```\nx = 1\n```\n````", "```\nx = 1\n```\n"),
    ],
    ids=repr,
)
def test_the_program_is_the_last_fenced_block_or_the_whole_answer(answer: str, program: str) -> None:
    assert program_in(answer) == program


def test_tests_are_source_and_nothing_else() -> None:
    reward = ProgramReward(field="checks")
    assert sources_of(reward, {"checks": ["a", "b"]}) == ["a\nb"]
    assert sources_of(ProgramReward(field="checks", credit="share"), {"checks": ["a", "b"]}) == ["a", "b"]
    assert sources_of(reward, {}) == sources_of(reward, {"checks": []}) == sources_of(reward, {"checks": ""}) == []
    for wrong in (3, {"a": "b"}, ["a", 3]):
        with pytest.raises(ConfigError, match="is neither a text nor a list of texts"):
            check_rows([reward], rows(checks=wrong), [], "grpo")
    with pytest.raises(ConfigError, match="needs the field checks, which none of 3 rows of instructions has"):
        check_rows([reward], rows(tests=TESTS), [], "grpo")


def test_a_program_that_attacks_earns_nothing_and_nothing_else_happens(passed: PassedTests, tmp_path: Path) -> None:
    """In turn: it ends early, forks, forks without an end, sleeps, prints a gigabyte, writes a file here, writes a
    gigabyte, opens a socket, reads a file of ours, takes memory, ends its parent, and kills every process it can."""
    name, target, secret = new_name(), tmp_path / "written", tmp_path / "secret"
    secret.write_text("42")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        address = server.getsockname()
        good = "def add(a, b):\n    return a + b\n"
        attacks = [
            "import sys\nsys.exit(0)",
            "import os\nos._exit(0)",
            f"{named(name)}if os.fork() == 0:\n    time.sleep(30)\n",
            "import os\nwhile True:\n    os.fork()",
            "import time\ntime.sleep(3600)",
            "import os\nfor _ in range(1000):\n    os.write(1, bytes(10**6))\n    print('x' * 10**6)\nwhile True: pass",
            f"open({str(target)!r}, 'w').write('x')",
            "with open('big', 'wb') as file:\n    for _ in range(1000):\n        file.write(bytes(1_000_000))",
            f"import socket\nsocket.create_connection({address!r})",
            f"assert open({str(secret)!r}).read() != '42'\nraise SystemExit",
            "x = bytearray(10**10)",
            "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
            "import os, signal\nos.kill(-1, signal.SIGKILL)",
        ]
        rewards = passed(answers(*(f"```python\n{good}{attack}\n```" for attack in attacks), RIGHT))
        assert rewards == [*[0] * len(attacks), 1]
        with pytest.raises(TimeoutError):
            server.accept()
    assert not target.exists()
    assert secret.read_text() == "42"
    left = processes(name)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []
