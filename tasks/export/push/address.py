"""The addresses that a release may go to. Others are refused before anything is requested or sent.

fsspec opens much that isn't a place to publish: archives, caches, chains of both, this process's memory. So the schemes
that keep files for other people are listed here, and all others are refused by name.
"""

from __future__ import annotations

import re

from fsspec.registry import known_implementations

from storage.credentials import REMEDY, decoded, has_credentials
from storage.errors import ConfigError

HUB = "hf"
BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "tos")  # have keys, not folders
SERVERS = ("sftp", "ssh", "ftp", "smb", "hdfs", "webhdfs", "webdav", "dbfs")  # have folders, which must be made
HERE = ("file", "local")
SERVE = "serve"  # a running server by its state folder, which only a promotion takes
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(/*)(.*)", re.DOTALL)
_INSTEAD = "Give hf://OWNER/NAME, the URL of a bucket such as s3://BUCKET/FOLDER, or a folder."


def address(url: str) -> tuple[str, str]:
    """The scheme of an address in lower case (empty for a plain path), and the address with that scheme. Raises
    ConfigError for an address with a password, or one that can't be published to."""
    if has_credentials(url):
        raise ConfigError(f"The address {decoded(url)} holds a password or a token.", REMEDY)
    if "::" in url:
        raise ConfigError(f"{url} is a chain of addresses, which can't be published to.", _INSTEAD)
    if not url.strip() or "\0" in url:
        raise ConfigError("The address is empty or isn't a file name.", _INSTEAD)
    match = _SCHEME.fullmatch(url)
    known = {*known_implementations, HUB, SERVE, *BUCKETS, *SERVERS}
    if not match or (match[2] != "//" and not url.startswith(f"{match[1]}://") and match[1].lower() not in known):
        return "", url
    scheme, rest = match[1].lower(), match[3]
    if scheme not in (HUB, *BUCKETS, *SERVERS, *HERE):
        if scheme == SERVE:
            raise ConfigError(f"{url} is a server, which gets no copy.", "Swap it in: `gristmill serve swap RELEASE`.")
        why = "which ends with this process" if scheme == "memory" else "which doesn't keep files for other people"
        raise ConfigError(f"{url} is an address of {scheme}, {why}.", _INSTEAD)
    if len(match[2]) < 2:
        raise ConfigError(f"{url} lacks a slash.", f"Write {scheme}://{'/' if scheme in HERE else ''}{rest}.")
    if scheme in (*BUCKETS, *SERVERS):
        _check_path(url, scheme, match[2][2:] + rest)
    return scheme, f"{scheme}:{match[2]}{rest}"


def _check_path(url: str, scheme: str, path: str) -> None:
    """Refuse parts that a bucket takes as names and other programs as path steps: they would not find the files."""
    first, *parts = path.rstrip("/").split("/")
    if not first and (scheme in BUCKETS or not parts):
        raise ConfigError(f"{url} lacks the name of a {'bucket' if scheme in BUCKETS else 'server'}.", _INSTEAD)
    if odd := {"", ".", ".."} & set(parts):
        named = " or ".join(f"`{one}`" if one else "two slashes" for one in sorted(odd))
        raise ConfigError(f"{url} has {named} in its path.", "Write the path without them.")
