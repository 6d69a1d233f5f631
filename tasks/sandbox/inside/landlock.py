"""Landlock (Linux 5.13): restricts which files a process may use, by rules that it can't take back.

It needs no privilege, so it works in a container without capabilities. Its interface is versioned, and a right is
handled only if the kernel knows it. See the kernel's Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from tasks.sandbox.inside import kernel

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEVICE = 1 << 14, 1 << 15
ALL_OF_FIRST = (1 << 13) - 1  # the rights of version 1
REFER = 1 << 13
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE  # rights that a rule on one file may have
READ = EXECUTE | READ_FILE | READ_DIR
TCP_BIND_CONNECT, SCOPE_SOCKETS_SIGNALS = 3, 3
SCOPES, NETWORK, IOCTLS, TRUNCATES, REFERS = 6, 4, 5, 3, 2  # the versions that introduced them


def version() -> int:
    """The version of the kernel's Landlock, 0 without it."""
    try:
        return kernel.syscall("landlock_create_ruleset", CREATE_RULESET, None, 0, VERSION_FLAG)
    except OSError:
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Allow this process and its children only to read below `readable` and to do anything below `writable`.

    TCP and, in new kernels, abstract Unix sockets and signals to other processes are refused as well. Paths that don't
    exist are skipped. Needs no_new_privs. Raises OSError.
    """
    here = version()
    handled = ALL_OF_FIRST
    for since, right in ((REFERS, REFER), (TRUNCATES, TRUNCATE), (IOCTLS, IOCTL_DEVICE)):
        handled |= right if here >= since else 0
    attributes = struct.pack(
        "=QQQ", handled, TCP_BIND_CONNECT if here >= NETWORK else 0, SCOPE_SOCKETS_SIGNALS if here >= SCOPES else 0
    )
    size = 24 if here >= SCOPES else 16 if here >= NETWORK else 8
    ruleset = kernel.syscall(
        "landlock_create_ruleset", CREATE_RULESET, ctypes.create_string_buffer(attributes, size), size, 0
    )
    for path, rights in (*((one, READ) for one in readable), *((one, handled) for one in writable)):
        _allow(ruleset, path, rights & handled)
    kernel.syscall("landlock_restrict_self", RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        rights &= OF_FILES
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
    kernel.syscall("landlock_add_rule", ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
    os.close(place)
