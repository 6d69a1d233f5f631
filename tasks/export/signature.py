"""Signatures by SSH keys, made and checked by OpenSSH's `ssh-keygen -Y`, which nearly every machine has.

A signature covers SHA256SUMS in the namespace `gristmill`, so a signature that the key made for git or a file is
refused. `ssh-keygen` gets the very bytes that its caller uses, as the file could change in between.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from storage.errors import ConfigError, SignatureError

NAMESPACE = "gristmill"


def sign(data: bytes, key: Path) -> bytes:
    """The armoured signature of `data` by a private key, or by the one that an agent holds for a public key.

    `ssh-keygen` prompts at the terminal if the key needs a passphrase or a touch. Raises ConfigError for a missing key,
    and SignatureError.
    """
    if not key.is_file():
        raise ConfigError(f"The key {key} doesn't exist.", "Give one with --key, or make one: ssh-keygen -t ed25519")
    done = _ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, data=data, quiet=False)
    if done.returncode:
        public = f"ssh-keygen -y -f {key} > {key}.pub"
        raise SignatureError(
            f"ssh-keygen could not sign with {key}.",
            f"Its reason is above. A key that isn't in OpenSSH's own format needs its public half next to it: {public}",
        )
    return done.stdout


def signer(data: bytes, signature: bytes, signers: Path, identity: str | None = None) -> str:
    """The signer of `data`: a principal of the file `signers`, in the format of ALLOWED SIGNERS in ssh-keygen(1). With
    `identity`, only that one.

    Raises ConfigError for a missing file, and SignatureError if none of them signed.
    """
    if not signers.is_file():
        raise ConfigError(
            f"The file {signers} doesn't exist.", "Give the file of the keys that you trust with --signers."
        )
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        file = Path(folder) / "signature"
        file.write_bytes(signature)
        files = ("-f", str(signers), "-s", str(file))
        if identity is None:
            principals = _ssh_keygen("find-principals", *files, data=data)
            if principals.returncode:
                raise _refusal(principals, f"No key in {signers} made the signature")
            names = principals.stdout.decode(errors="replace").splitlines()
            named = [name for name in names if not set(name) & set("*?!")]
            if not named:
                raise SignatureError(
                    f"{signers} allows the key for {', '.join(names)}, which is a pattern.",
                    "Name the required signer with --identity.",
                )
            identity = named[0]
        done = _ssh_keygen("verify", *files, "-n", NAMESPACE, "-I", identity, data=data)
        if done.returncode:
            raise _refusal(done, f"The signature isn't by {identity} for these bytes")
    return identity


def _refusal(done: subprocess.CompletedProcess[bytes], message: str) -> SignatureError:
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.isprintable()]
    reason = f" ({lines[0].rstrip('.')})" if lines else ""
    return SignatureError(
        f"{message}{reason}.",
        "Don't use the release: get it, or the file of signers, again from a source that you trust.",
    )


def _ssh_keygen(action: str, *arguments: str, data: bytes, quiet: bool = True) -> subprocess.CompletedProcess[bytes]:
    command = ["ssh-keygen", "-Y", action, *arguments]
    try:
        return subprocess.run(
            command, input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None, check=False
        )
    except FileNotFoundError as error:
        raise SignatureError(
            "ssh-keygen, which signs and checks signatures, is not on the PATH.",
            "Install OpenSSH, version 8.2 or newer: the package openssh-client or openssh.",
        ) from error
