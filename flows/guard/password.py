"""The password of a Prefect server that Gristmill starts.

Whoever can use Prefect's API can start any command by a worker, so the server answers nobody without a password. That
of `gristmill ui` lies in a file of Prefect's home that only its user can read, and stays the same from start to start:
a browser that is signed in remains so. That of a run's own server is in the environment of its processes alone.

Prefect calls it an auth string, `name:password`, and has a variable for the server's side and one for the client's.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from flows.database import FOLDER, home
from storage.errors import ServerError
from storage.files.locks import hold

SERVER, CLIENT = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
WHOLE = re.compile(r"gristmill:[\w-]{32}")
OWN_ONLY = 0o600


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
    """The password of `gristmill ui`, made at the first call. One that others could have read is made anew.

    Raises ServerError where there is no place for it.
    """
    try:
        file().parent.mkdir(parents=True, exist_ok=True)
        with hold(file().with_name("password.lock")):
            return _read() or _write()
    except OSError as error:
        problem = f"The password of the Prefect server can't be kept in {file()}: {error.strerror}."
        raise ServerError(problem, f"Make room and leave to write there, or set {SERVER}.") from error


def take(environment: Mapping[str, str]) -> dict[str, str]:
    """What a client of the server that PREFECT_API_URL names lacks in its environment: the password of `gristmill ui`
    for one on this machine, unless it has another."""
    try:
        host = urlsplit(environment.get("PREFECT_API_URL", "")).hostname or ""
    except ValueError:
        return {}
    if CLIENT in environment or not (host == "localhost" or _is_loopback(host)):
        return {}
    with suppress(OSError):
        if password := _read():
            return {CLIENT: password}
    return {}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read() -> str | None:
    """What the file holds, if that is a password which nobody else could read. Raises OSError."""
    try:
        opened = os.open(file(), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(opened, "rb") as held:
        about = os.fstat(held.fileno())
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) != OWN_ONLY:
            return None
        text = held.read(100).decode("ascii", errors="replace").strip()
        return text if WHOLE.fullmatch(text) else None


def _write() -> str:
    """A new one, whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", dir=file().parent, prefix="password-", delete=False) as draft:
        draft.write(password := new())
        draft.flush()
        os.fsync(draft.fileno())
    os.replace(draft.name, file())
    return password
