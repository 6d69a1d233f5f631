"""Which isolation a machine offers, and what happens if it isn't enough."""

from __future__ import annotations

import subprocess
import sys

import pytest

from storage.errors import ConfigError
from tasks.sandbox import Program, Sandbox, SandboxConfig, levels, run_programs
from tasks.sandbox.inside import root, seccomp
from tasks.sandbox.inside.kernel import MACHINE
from tasks.sandbox.worker import Means
from tests.tasks.sandbox.attacks import FILTERS, offered

PROGRAM = Program("x = 1", "assert x == 1")


def test_what_the_doctor_says_is_what_programs_get() -> None:
    check = levels.sandbox_check()
    (outcome,) = run_programs([PROGRAM], SandboxConfig(isolation="limits"))
    assert outcome.passed
    assert check.value == levels.WORDS[outcome.isolation]
    assert check.state == ("advice" if outcome.isolation == "limits" else "passed")


def test_a_kernel_without_user_namespaces_offers_filters() -> None:
    """In a user namespace that doesn't allow further ones, requiring namespaces is refused by name."""
    offered(FILTERS)
    source = (
        "from tasks.sandbox import *\n"
        f"programs = [{PROGRAM!r}]\n"
        "(outcome,) = run_programs(programs, SandboxConfig())\n"
        "print(outcome.isolation, outcome.state)\n"
        "try: run_programs(programs, SandboxConfig(isolation='namespaces'))\n"
        "except Exception as error: print(error)"
    )
    inside = f'echo 0 > /proc/sys/user/max_user_namespaces && exec {sys.executable} -c "$SOURCE"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", f"SOURCE=$1; {inside}", "sh", source]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if "unshare failed" in done.stderr or "max_user_namespaces" in done.stderr:
        pytest.skip(done.stderr)
    first, second = done.stdout.splitlines()
    assert first == "filters passed"
    assert second.startswith(
        "The sandbox requires isolation namespaces, and this machine offers less: programs run behind Landlock"
    )


def test_too_little_isolation_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "means_here", lambda: Means(False, False, True))
    with pytest.raises(ConfigError, match=r"isolation filters.*5\.13"):
        Sandbox(SandboxConfig())
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigError, match="darwin"):
        levels.check_linux()


def test_only_limits_run_programs_where_that_is_all_that_is_asked() -> None:
    (outcome,) = run_programs([PROGRAM], SandboxConfig(isolation="limits"), means=Means(False, False, False))
    assert (outcome.state, outcome.isolation) == ("passed", "limits")


def test_readable_folders_lie_in_none_of_the_others() -> None:
    found = root.outermost(["/usr/lib", "/usr/lib/python3", "/usr", "/", "/nowhere"])
    assert found == ["/usr"]
    for one in root.readable(sys.path):
        assert one != "/"
        assert not any(one.startswith(f"{other}/") for other in root.readable(sys.path))


@pytest.mark.skipif(MACHINE != "x86_64", reason="the numbers of x86_64")
def test_the_filter_has_one_answer_for_every_call() -> None:
    """By twenty lines that run the kernel's packet filter."""
    import struct

    code: list[tuple[int, ...]] = []

    def answer(number: int, *arguments: int, architecture: int = 0xC000003E) -> int:
        words = [*arguments, *[0] * (6 - len(arguments))]
        data = struct.pack("<iIQ6Q", number, architecture, 0, *words)
        at, register = 0, 0
        while True:
            operation, if_true, if_false, value = code[at]
            at += 1
            if operation == seccomp.LOAD:
                (register,) = struct.unpack_from("<I", data, value)
            elif operation == seccomp.RETURN:
                return int(value)
            else:
                test = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[operation]
                at += if_true if test else if_false

    def read(program: bytes) -> list[tuple[int, ...]]:
        return [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]

    code[:] = read(seccomp.program(77, protected=False))
    allow, deny, missing, kill = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
    calls = {"read": 0, "write": 1, "openat": 257, "mmap": 9, "futex": 202, "getrandom": 318, "exit_group": 231}
    assert {answer(number) for number in calls.values()} == {allow}
    plain = {name: numbers[0] for name, numbers in seccomp.NUMBERS.items() if name not in seccomp.SYMBOLIC}
    for name, number in plain.items():
        if number is not None:
            assert answer(number) == (0x00050000 if name in seccomp.MODES else deny), name
    code[:] = read(seccomp.program(77, protected=True))
    assert (answer(90), answer(280), answer(92)) == (allow, allow, deny)  # chmod, utimensat, chown
    assert (answer(56, 17), answer(56, 0x10000 | 0x100), answer(435)) == (deny, allow, missing)  # clone, clone3
    assert (answer(62, 77), answer(62, 78), answer(62, 0), answer(62, 2**64 - 1)) == (allow, deny, deny, deny)  # kill
    assert (answer(234, 77), answer(234, 1)) == (allow, deny)  # tgkill
    assert (answer(302, 0), answer(302, 77), answer(302, 1)) == (allow, allow, deny)  # prlimit64
    assert (answer(157, 1), answer(157, 15), answer(72, 3, 8), answer(72, 3, 2)) == (deny, allow, deny, allow)
    # attributes and leases of files
    assert (answer(16, 0, 0x40086602), answer(16, 0, 0x401C5820), answer(72, 3, 1024)) == (deny, deny, deny)
    assert (answer(16, 0, 0x5412), answer(16, 0, 0x5401), answer(0x40000000 + 59)) == (deny, allow, deny)
    assert answer(0, architecture=0x40000003) == kill
