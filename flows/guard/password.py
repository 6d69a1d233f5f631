"""The password of a Prefect server that Gristmill starts.

Whoever can use Prefect's API can have a worker start any command, so the server answers nobody without a password.
`gristmill ui` keeps its password in a file of Prefect's home that only its user can read. It stays the same from start
to start, so browsers stay signed in, and a run that outlives the server can go on.

Prefect calls it an auth string, `name:password`, and has one variable for the server and one for clients.
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

from storage.errors import ServerError
from storage.files.locks import hold, is_held

SERVER, CLIENT = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
CODE = "GRISTMILL_SIGN_IN"  # the code that a browser exchanges for the password once, for the server's process
WHOLE = re.compile(r"[!-~]+:[!-~]{16,}")
OTHERS = 0o077  # the permissions of other users


def home() -> Path:
    """Prefect's home, without importing Prefect."""
    return Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()


def new_password() -> str:
    """A random password."""
    return f"gristmill:{secrets.token_urlsafe(24)}"


def variables(password: str) -> dict[str, str]:
    """The environment of a server with this password, and of its clients."""
    return {SERVER: password, CLIENT: password}


def password_file() -> Path:
    """The file with the password of `gristmill ui`."""
    return home() / "gristmill" / "password"


def ui_password() -> str:
    """The password of `gristmill ui`, created on the first call and replaced if others could have read it.

    Raises ServerError if it can't be written.
    """
    try:
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        password_file().parent.mkdir(exist_ok=True)
        password_file().parent.chmod(0o700)  # whoever can open its locks can hold them
        with hold(password_file().with_name("password.lock")):
            return _read() or _write()
    except OSError as error:
        problem = f"The password of the Prefect server can't be kept in {password_file()}: {error.strerror}."
        raise ServerError(problem, f"Make sure that you can write a plain file there, or set {SERVER}.") from error


@contextmanager
def password_serves(port: int) -> Iterator[None]:
    """Within the block, commands of this user send the password to the server on this port. Outside it, somebody else
    may be listening there."""
    with hold(_held_at(port)):
        yield


def client_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a client of the server of PREFECT_API_URL lacks: the password, if that is the server of a
    running `gristmill ui` and the environment has no other password."""
    with suppress(ValueError, OSError):
        address = urlsplit(environment.get("PREFECT_API_URL", ""))
        # `localhost` may lead to another address first, where somebody else may listen
        here = address.scheme == "http" and address.hostname == "127.0.0.1" and _is_own(password_file().parent)
        if CLIENT not in environment and here and is_held(_held_at(address.port or 80)) and (password := _read()):
            return {CLIENT: password}
    return {}


def _is_own(folder: Path) -> bool:
    about = folder.stat()
    return about.st_uid == os.getuid() and not about.st_mode & OTHERS


def _held_at(port: int) -> Path:
    return password_file().with_name(f"serving-{port}.lock")


def _read() -> str | None:
    """The password in the file, if it is valid and nobody else could read it. Raises OSError."""
    try:
        opened = os.open(password_file(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(opened, "rb") as held:
        about = os.fstat(held.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & OTHERS:
            return None
        text = held.read(1000).decode("ascii", errors="replace").strip()
        return text if WHOLE.fullmatch(text) else None


def _write() -> str:
    """Write a new password, whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", dir=password_file().parent, prefix="password-", delete=False) as draft:
        draft.write(password := new_password())
        draft.flush()
        os.fsync(draft.fileno())
    os.replace(draft.name, password_file())
    return password
