"""The password of a Prefect server that Gristmill starts.

Whoever can use Prefect's API can start any command by a worker, so the server answers nobody without a password. That
of `gristmill ui` lies in a file of Prefect's home that only its user can read, and stays the same from start to start:
a browser that is signed in remains so, and a run goes on that has outlived it. That of a run's own server is in the
environment of its processes alone.

Prefect calls it an auth string, `name:password`, and has a variable for the server's side and one for the client's.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from flows.database import FOLDER, home
from storage.errors import ServerError
from storage.files.locks import hold, is_held

SERVER, CLIENT = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
CODE = "GRISTMILL_SIGN_IN"  # gives the server's process what a browser gets the password by, once
WHOLE = re.compile(r"[!-~]+:[!-~]{16,}")
OTHERS = 0o077  # what the rest of the machine may do


def new() -> str:
    """A password that nobody has used."""
    return f"gristmill:{secrets.token_urlsafe(24)}"


def variables(password: str) -> dict[str, str]:
    """The environment of a server with this password, and of its clients."""
    return {SERVER: password, CLIENT: password}


def file() -> Path:
    """Where the password of `gristmill ui` lies."""
    return home() / FOLDER / "password"


def kept() -> str:
    """The password of `gristmill ui`, created on the first call and replaced if others could have read it.

    Raises ServerError where there is no place for it.
    """
    try:
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        file().parent.mkdir(exist_ok=True)
        file().parent.chmod(0o700)  # whoever could open its locks could hold them
        with hold(file().with_name("password.lock")):
            return _read() or _write()
    except OSError as error:
        problem = f"The password of the Prefect server can't be kept in {file()}: {error.strerror}."
        raise ServerError(problem, f"See to it that you can write a plain file there, or set {SERVER}.") from error


@contextmanager
def serving(port: int) -> Iterator[None]:
    """Within the block commands of this user give the password to the server on this port. At other times whoever
    listens there may be somebody else."""
    with hold(_held_at(port)):
        yield


def take(environment: Mapping[str, str]) -> dict[str, str]:
    """What a client of the server that PREFECT_API_URL names lacks in its environment: the password, if that is the
    server of a `gristmill ui` which runs now, unless it has another."""
    with suppress(ValueError, OSError):
        address = urlsplit(environment.get("PREFECT_API_URL", ""))
        # `localhost` may lead to another address first, where somebody else may listen
        here = address.scheme == "http" and address.hostname == "127.0.0.1" and _is_own(file().parent)
        if CLIENT not in environment and here and is_held(_held_at(address.port or 80)) and (password := _read()):
            return {CLIENT: password}
    return {}


def _is_own(folder: Path) -> bool:
    about = folder.stat()
    return about.st_uid == os.getuid() and not about.st_mode & OTHERS


def _held_at(port: int) -> Path:
    return file().with_name(f"serving-{port}.lock")


def _read() -> str | None:
    """What the file holds, if that is a password which nobody else could read. Raises OSError."""
    try:
        opened = os.open(file(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(opened, "rb") as held:
        about = os.fstat(held.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & OTHERS:
            return None
        text = held.read(1000).decode("ascii", errors="replace").strip()
        return text if WHOLE.fullmatch(text) else None


def _write() -> str:
    """A new one, whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", dir=file().parent, prefix="password-", delete=False) as draft:
        draft.write(password := new())
        draft.flush()
        os.fsync(draft.fileno())
    os.replace(draft.name, file())
    return password
