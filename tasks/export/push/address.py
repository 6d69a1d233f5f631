"""Where a release may go: an address is refused where nothing could be kept, before anything is asked or sent.

fsspec opens much that is no place to publish: archives, caches, chains of both, this process's memory. So the schemes
that hold files for others are listed here, and all else is refused by name.
"""

from __future__ import annotations

import re

from fsspec.registry import known_implementations

from storage.credentials import REMEDY, decoded, has_credentials
from storage.errors import ConfigError

HUB = "hf"
BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos")  # have keys and no folders
SERVERS = ("sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs", "webdav", "dbfs")  # have folders, which must be made
HERE = ("file", "local")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(/*)(.*)", re.DOTALL)
_INSTEAD = "Give hf://OWNER/NAME, the URL of a bucket such as s3://BUCKET/FOLDER, or a folder."


def address(url: str) -> tuple[str, str]:
    """The scheme of an address, in small letters and empty for a plain path, and the address with it so written.
    Raises ConfigError for one with a password, and for one that is no place to publish."""
    if has_credentials(url):
        raise ConfigError(f"The address {decoded(url)} holds a password or a token.", REMEDY)
    if "::" in url:
        raise ConfigError(f"{url} is a chain of addresses, which is no place to publish.", _INSTEAD)
    if not url.strip() or "\0" in url:
        raise ConfigError("The address is empty or no name of a file.", _INSTEAD)
    found = _SCHEME.fullmatch(url)
    known = {*known_implementations, HUB, *BUCKETS, *SERVERS}
    if not found or (found[2] != "//" and not url.startswith(f"{found[1]}://") and found[1].lower() not in known):
        return "", url
    scheme, rest = found[1].lower(), found[3]
    if scheme not in (HUB, *BUCKETS, *SERVERS, *HERE):
        why = "which is gone with this process" if scheme == "memory" else "which holds no files for others"
        raise ConfigError(f"{url} is an address of {scheme}, {why}.", _INSTEAD)
    if len(found[2]) < 2:
        raise ConfigError(f"{url} lacks a slash.", f"Write {scheme}://{'/' if scheme in HERE else ''}{rest}.")
    if scheme in (*BUCKETS, *SERVERS):
        _check_path(url, scheme, found[2][2:] + rest)
    return scheme, f"{scheme}:{found[2]}{rest}"


def _check_path(url: str, scheme: str, path: str) -> None:
    """Refuse what a bucket takes for a name and other programs for a way: they would not find the files."""
    first, *parts = path.rstrip("/").split("/")
    if not first and (scheme in BUCKETS or not parts):
        raise ConfigError(f"{url} names no {'bucket' if scheme in BUCKETS else 'server'}.", _INSTEAD)
    if odd := {"", ".", ".."} & set(parts):
        named = " or ".join(f"`{one}`" if one else "two slashes" for one in sorted(odd))
        raise ConfigError(f"{url} has {named} in its path.", "Write the path without.")
