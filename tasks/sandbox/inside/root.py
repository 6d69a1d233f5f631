"""The file system that a sandbox sees: Python, shared libraries and four devices, all read-only, and an empty folder.

It is built once, in its own mount namespace. Every program then mounts a file system in memory, of bounded size, on the
empty folder, which vanishes with the program's namespace. Without /proc, other processes are neither visible nor
readable.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.sandbox.inside import kernel

WORK = "/sandbox"  # where a program's folder is
DEVICES = ("null", "zero", "random", "urandom")
SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache")
BASES = ("/tmp", "/var/tmp", "/mnt", "/run", "/dev/shm")  # any folder will do: only this namespace sees it covered
INODES = 4096  # files and folders of one program


def readable(python_path: Sequence[str]) -> list[str]:
    """The folders that a program may read: those of `python_path`, of the libraries that Python itself has loaded, and
    the system's. Resolved paths, none within another."""
    loaded = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and ".so" in fields[5] and fields[5].startswith("/"):
            loaded.add(os.path.dirname(fields[5]))
    return outermost([*python_path, *loaded, *SYSTEM])


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths that exist and lie within none of the others, resolved. Never includes the root."""
    kept: list[str] = []
    for path in sorted({os.path.realpath(one) for one in paths if os.path.exists(one)} - {"/"}):
        if not any(path.startswith(f"{outer}/") for outer in kept):
            kept.append(path)
    return kept


def build(paths: Iterable[str]) -> None:
    """Build a root from `paths` and enter it, in this process's private mount namespace. Raises OSError."""
    base = next((one for one in BASES if os.path.isdir(one)), None)
    if base is None:
        raise OSError(2, f"mount: none of {', '.join(BASES)} exists")
    kernel.mount("none", "/", None, kernel.MS_RECURSIVE | kernel.MS_PRIVATE)
    devices = [f"/dev/{name}" for name in DEVICES if os.path.exists(f"/dev/{name}")]
    # opened before the new file system covers some of them
    opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*paths, *devices)}
    links = {path: os.readlink(path) for path in ("/lib", "/lib64") if os.path.islink(path)}
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID, "size=1m,mode=755")
    for path, descriptor in opened.items():
        source, target = f"/proc/self/fd/{descriptor}", base + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_RECURSIVE)
        if path not in devices:
            kernel.set_mount_attributes(target, kernel.ATTR_NODEV, recursive=True)
        os.close(descriptor)
    for path, aim in links.items():
        os.symlink(aim, base + path)
    os.mkdir(base + WORK)
    kernel.set_mount_attributes(base, kernel.ATTR_RDONLY | kernel.ATTR_NOSUID, recursive=True)
    kernel.enter_root(base)


def mount_work(size: int) -> None:
    """Mount an empty file system in memory, of at most `size` bytes, on the program's folder."""
    options = f"size={size},nr_inodes={INODES},mode=700"
    kernel.mount("tmpfs", WORK, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
