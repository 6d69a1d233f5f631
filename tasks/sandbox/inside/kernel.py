"""Linux system calls that Python 3.11 lacks: namespaces, mounts, prctl, capabilities.

Each raises OSError with its name. Constants are from the kernel's uapi headers.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Any

MACHINE = platform.machine()

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND, MS_RECURSIVE, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 0x1, 0x2, 0x4, 0x8
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_MOUNT_SETATTR = 442  # the same on all machines, like every call added since Linux 5.1
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CAPABILITY_VERSION = 0x20080522  # version 3: two words of capabilities

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """Call a function of libc that returns -1 and sets errno on failure."""
    return _checked(name, getattr(_libc, name)(*arguments))


def syscall(name: str, number: int, *arguments: Any) -> int:
    """Make a system call without a function in libc. Every integer is passed as a word."""
    words = (ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)
    return _checked(name, _libc.syscall(ctypes.c_long(number), *words))


def _checked(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def unshare(flags: int) -> None:
    """Move this process into new namespaces of the kinds in `flags`."""
    call("unshare", flags)


def prctl(option: int, value: int) -> None:
    """Set a property of this process."""
    call("prctl", option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    call("mount", encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])


def set_mount_attributes(path: str, attributes: int, *, recursive: bool) -> None:
    """mount_setattr(2), Linux 5.12. Unlike a remount it reaches the mounts below, and removes no locked flag."""
    settings = ctypes.create_string_buffer(struct.pack("=QQQQ", attributes, 0, 0, 0), 32)
    flags = AT_RECURSIVE if recursive else 0
    syscall("mount_setattr", SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), flags, settings, 32)


def enter_root(folder: str) -> None:
    """Make `folder`, which must be a mount, the root, and detach the old root (pivot_root(2) with "." twice)."""
    os.chdir(folder)
    if MACHINE not in SYS_PIVOT_ROOT:
        raise OSError(38, f"pivot_root: unknown on {MACHINE}")
    syscall("pivot_root", SYS_PIVOT_ROOT[MACHINE], b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def drop_capabilities() -> None:
    """Drop every capability for good: from here on, set-user-id programs grant none either."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    call("capset", header, bytes(24))
