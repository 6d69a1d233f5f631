"""Only a program whose tests ran to their end passes, and not one that only pretends to."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.sandbox import Outcome, Program, SandboxConfig, run_programs
from tasks.sandbox.inside.supervise import judge
from tasks.sandbox.worker import Means, Worker
from tests.tasks.sandbox.attacks import EVERYTHING, FILTERS, NAMESPACES, offered, without_sandbox

CONFIG = SandboxConfig(seconds=5, memory_mb=512)
TESTS = "assert add(2, 3) == 5"


@pytest.fixture(params=[EVERYTHING, NAMESPACES, FILTERS], ids=["everything", "namespaces", "filters"])
def means(request: pytest.FixtureRequest) -> Means:
    return offered(request.param)


def run_all(texts: list[str], means: Means, tests: str = TESTS) -> list[Outcome]:
    return run_programs([Program(text, tests) for text in texts], CONFIG, 1, means)


def test_outcomes_come_in_the_order_of_the_programs() -> None:
    programs = [Program(f"import time; time.sleep({0.2 * (i % 2)})", f"assert {i} != {i % 3}") for i in range(9)]
    outcomes = run_programs(programs, CONFIG, workers=3)
    assert [outcome.passed for outcome in outcomes] == [i != i % 3 for i in range(9)]
    assert run_programs([], CONFIG) == []


def test_the_last_line_of_a_failure_is_told(means: Means) -> None:
    texts = [
        "def add(a, b): return a - b",
        "def add(a, b): raise KeyError('x')",
        "def add(a, b) return",
        "add = 'é' + 1",
    ]
    details = [outcome.detail for outcome in run_all(texts, means)]
    assert details[0] == "AssertionError"
    assert details[1] == "KeyError: 'x'"
    assert details[2].startswith("SyntaxError: ")
    assert details[3] == 'TypeError: can only concatenate str (not "int") to str'


EARLY = [
    "import sys; sys.exit(0)",
    "raise SystemExit",
    "import os; os._exit(0)",
    "print('passed'); import os; os._exit(0)",
    "import os; os.execv('/bin/true', ['true'])",
    "import ctypes; ctypes.CDLL(None)._exit(0)",
    "import ctypes; ctypes.CDLL(None).exit(0)",
    "import signal, os; os.kill(os.getpid(), 9)",
    "import os, threading; threading.Thread(target=os._exit, args=(0,)).start(); import time; time.sleep(5)",
    "def add(a, b): import os; os._exit(0)",
    "class E(BaseException): pass\ndef add(a, b): raise E",
    "import atexit, os; atexit.register(os._exit, 0); 1 / 0",
]


def test_ending_before_the_tests_does_not_pass(means: Means) -> None:
    for text, outcome in zip(EARLY, run_all(EARLY, means), strict=True):
        assert outcome.state in ("failed", "out of memory"), text


PATCHES = [
    "import builtins; builtins.AssertionError = ZeroDivisionError; AssertionError = int\ndef add(a, b): return 0",
    "import sys; sys.excepthook = lambda *_: None\ndef add(a, b): return 0",
    "import os; os.write = os._exit = lambda *_: None\ndef add(a, b): return 0",
    "import json; json.dumps = lambda *_: 'passed'\ndef add(a, b): return 0",
    "import builtins; builtins.exec = builtins.compile = lambda *_: None\ndef add(a, b): return 0",
    "import gc; gc.is_tracked = gc.get_referents = None\ndef add(a, b): return 0",
    "add = '''",
    "import sys\ndef jump(frame, event, argument):\n    return jump\nsys.settrace(jump)\ndef add(a, b): return 0",
    "@lambda f: lambda *_: None",
    "if False:\\",
    "def add(a, b): return 0\ntry:\n    pass\nfinally: x = \\",
]


def test_patching_does_not_pass(means: Means) -> None:
    for text, outcome in zip(PATCHES, run_all(PATCHES, means), strict=True):
        assert outcome.state == "failed", text
    decorated = run_all(["@lambda f: lambda *_: None"], means, "def check(f): assert f() == 5\ncheck(int)")
    assert decorated[0].error == "SyntaxError"


SEARCH = """
import gc, os, sys
texts, seen = [], set()
def attribute(value, name):
    try: return getattr(value, name)
    except Exception: return None
def gather(value, depth=0):
    if isinstance(value, (str, bytes)): texts.append(value)
    if depth == 5 or id(value) in seen or value is texts or value is seen: return
    seen.add(id(value))
    if isinstance(value, dict): inner = value.values()
    elif isinstance(value, (list, tuple, set)): inner = value
    else: inner = [attribute(value, name) for name in ("__dict__", "args", "func", "co_consts", "__self__")]
    for one in list(inner): gather(one, depth + 1)
try: 1 / 0
except Exception as error: frame = error.__traceback__.tb_frame
while frame:
    gather(dict(frame.f_locals)); gather(dict(frame.f_globals)); frame = frame.f_back
for found in gc.get_objects(): gather(found)
gather(sys.argv); gather(sys.orig_argv); gather(sys.modules)
for path in ("/proc/self/cmdline", "/proc/self/environ", "/proc/self/maps"):
    try: texts.append(open(path, "rb").read())
    except OSError: pass
for number in range(3, 256):
    try: os.set_blocking(number, False); texts.append(os.read(number, 100_000))
    except OSError: pass
"""
FORGE = """
for text in texts + [b"passed", b'["", ""]', b"0" * 16]:
    if isinstance(text, bytes) and len(text) == 16:
        for number in range(3, 256):
            try: os.write(number, text)
            except OSError: pass
os._exit(0)
"""
LOOK = """
if any(("mar" + "ker 17") in (text if isinstance(text, str) else text.decode("latin1")) for text in texts):
    raise LookupError("found")
"""


REACH = """
import gc, os, sys
def add(a, b): return 0
gc.unfreeze()
seen, waiting = {}, gc.get_objects() + gc.get_referrers(os.write, os._exit, exec, globals())
frame = sys._getframe()
while frame:
    waiting += frame.f_locals.values()
    frame = frame.f_back
while waiting:
    one = waiting.pop()
    if id(one) not in seen and one is not seen and one is not waiting:
        seen[id(one)] = one
        if type(one).__name__.endswith("iterator"):  # one that has given its last thing still holds it
            try: one.__setstate__(0)
            except (AttributeError, TypeError, ValueError): pass
        waiting += gc.get_referents(one)
for one in list(seen.values()):
    if isinstance(one, bytes) and len(one) == 16:
        for number in range(3, 64):
            try: os.write(number, one)
            except OSError: continue
            os._exit(0)
"""


def test_no_object_that_a_program_can_reach_leads_to_the_token(means: Means) -> None:
    (outcome,) = run_all([REACH], means)
    assert (outcome.state, outcome.error) == ("failed", "AssertionError")


def test_a_collection_in_the_middle_changes_nothing(means: Means) -> None:
    texts = ["import gc\ngc.collect()\ndef add(a, b): gc.collect(); return a + b", "import gc\ngc.collect()\n1 / 0"]
    right, wrong = run_all(texts, means)
    assert right.passed
    assert (wrong.state, wrong.error) == ("failed", "ZeroDivisionError")


def test_neither_the_token_nor_the_tests_are_found_by_searching(means: Means) -> None:
    forged, looked = run_all([SEARCH + FORGE, SEARCH + LOOK], means, "text = 'marker 17'\nassert text in {'', 1}")
    assert (forged.state, forged.error) == ("failed", "")
    assert (looked.state, looked.error) == ("failed", "AssertionError")
    open_to_all = f"import os\ntests = 'marker 17'\ntry: exec({SEARCH + LOOK!r}, {{}})\nexcept LookupError: os._exit(7)"
    assert without_sandbox(open_to_all) == 7  # what is not hidden is found


def test_crashes_are_failures_and_name_the_signal(means: Means) -> None:
    texts = [
        "import ctypes; ctypes.string_at(0)",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): return f.__call__()\nf()",
        "eval('(' * 100_000)",
        "import os; os.abort()",
    ]
    outcomes = run_all(texts, means)
    assert [outcome.state in ("failed", "out of memory") for outcome in outcomes] == [True] * 4
    assert outcomes[0].detail == "killed by SIGSEGV"


@pytest.mark.soak_but("everything")
def test_output_is_bounded_and_not_trusted(means: Means) -> None:
    huge = "import os, sys\nfor _ in range(200): print('x' * 1_000_000)\nos.write(1, b'y' * 10_000_000)\n"
    flood = "import os\nfor n in range(3, 64):\n  try:\n    while True: os.write(n, b'z')\n  except OSError: pass"
    add = "def add(a, b): return a + b\n"
    short = SandboxConfig(seconds=2)
    outcomes = run_programs([Program(huge + add, TESTS), Program(flood, TESTS)], short, 1, means)
    assert outcomes[0].passed
    assert outcomes[1].state == "timed out"
    (long,) = run_all(["raise ValueError('x' * 10_000_000)"], means)
    assert long.error == "ValueError"
    assert len(long.message) <= 1000


def test_programs_do_not_see_each_other(means: Means) -> None:
    leave = "import builtins, random, sys\nbuiltins.left = sys.left = 1\nopen('left', 'w').write('x')\nrandom.seed(1)"
    look = "import builtins, os, sys\nassert not hasattr(builtins, 'left') and not hasattr(sys, 'left')"
    outcomes = run_all([leave, look + "\nassert not os.listdir()"], means, "")
    assert [outcome.passed for outcome in outcomes] == [True, True]


def test_a_set_of_strings_has_the_same_order_in_every_worker() -> None:
    text = f"raise ValueError(''.join(set({string.ascii_letters!r})))"
    outcomes = run_programs([Program(text, "")] * 4, CONFIG, 4) + run_programs([Program(text, "")], CONFIG, 1)
    assert len({outcome.message for outcome in outcomes}) == 1


def test_a_future_import_of_the_program_holds_for_its_tests() -> None:
    text = "from __future__ import annotations\ndef f(x: Missing): pass"
    (outcome,) = run_programs(
        [Program(text, "def g(x: Absent): pass\nassert g.__annotations__['x'] == 'Absent'")], CONFIG
    )
    assert outcome.passed


def test_installed_packages_can_be_imported_or_not() -> None:
    (outcome,) = run_programs([Program("import numpy", "assert numpy.zeros(3).sum() == 0")], CONFIG)
    assert outcome.passed, outcome
    (outcome,) = run_programs([Program("import numpy", "")], CONFIG.model_copy(update={"packages": False}))
    assert outcome.error == "ModuleNotFoundError"


ODD = ["", "\0", "\ud800", "x = '\ud800'", "é", "\r\n\t", "#" * 900_000, "#" * 1_100_000, "#coding: cp037\nx", "\f\x1a"]


def test_odd_sources_have_an_outcome() -> None:
    states = [outcome.state for outcome in run_programs([Program(text, "") for text in ODD], CONFIG, 1)]
    assert set(states) <= {"passed", "failed", "refused"}
    assert states[0] == "passed"
    assert states[1:4] == ["failed"] * 3
    assert states[6:8] == ["passed", "refused"]


def test_any_text_has_an_outcome() -> None:
    with Worker(CONFIG, offered(EVERYTHING)) as worker:

        @settings(max_examples=60)
        @given(st.text(max_size=60), st.text(max_size=20))
        def has_one(text: str, tests: str) -> None:
            outcome = worker.run(Program(text, f"{tests}\nassert False"))
            assert outcome.state in ("failed", "timed out"), outcome

        has_one()


@given(st.binary(max_size=60), st.sampled_from(["", "time", "files"]), st.integers(-70, 255), st.booleans())
def test_whatever_a_program_reports_only_the_token_passes(told: bytes, over: str, code: int, used: bool) -> None:
    assert judge(False, told, over, code, used)["state"] != "passed"
    assert (judge(True, told, over, code, used)["state"] == "passed") == (not over and code == 0)
