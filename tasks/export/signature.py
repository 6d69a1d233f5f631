"""Signatures by SSH keys, made and checked by OpenSSH's `ssh-keygen -Y`, which is nearly everywhere.

A signature is one of SHA256SUMS in the namespace `gristmill`, so one that its key made for git or a file is refused.
`ssh-keygen` reads the bytes that its caller goes on with, never the file again, which could change in between.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from storage.errors import ConfigError, SignatureError

NAMESPACE = "gristmill"


def sign(data: bytes, key: Path) -> bytes:
    """The armoured signature of `data` by a private key, or by the one that an agent holds for a public key.

    `ssh-keygen` asks at the terminal for what the key needs: a passphrase, a touch. Raises ConfigError, SignatureError.
    """
    if not key.is_file():
        raise ConfigError(f"There is no key {key}.", "Give one with --key, or make one: ssh-keygen -t ed25519")
    done = _ssh_keygen("sign", "-f", str(key), "-n", NAMESPACE, data=data, quiet=False)
    if done.returncode:
        public = f"ssh-keygen -y -f {key} > {key}.pub"
        raise SignatureError(
            f"ssh-keygen could not sign with {key}.",
            f"It says why above. A key that is not in OpenSSH's own format needs its public half beside it: {public}",
        )
    return done.stdout


def signer(data: bytes, signature: bytes, signers: Path, identity: str | None = None) -> str:
    """Who signed `data`: a principal of the file `signers`, in the format of ALLOWED SIGNERS in ssh-keygen(1); only
    `identity`, where it is given.

    Raises ConfigError where there is no such file, and SignatureError for what none of them signed.
    """
    if not signers.is_file():
        raise ConfigError(f"There is no file {signers}.", "Give the file of the keys that you trust with --signers.")
    with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
        file = Path(folder) / "signature"
        file.write_bytes(signature)
        given = ("-f", str(signers), "-s", str(file))
        if identity is None:
            found = _ssh_keygen("find-principals", *given, data=data)
            if found.returncode:
                raise _refused(found, f"No key in {signers} made the signature")
            names = found.stdout.decode(errors="replace").splitlines()
            named = [name for name in names if not set(name) & set("*?!")]
            if not named:
                raise SignatureError(
                    f"{signers} allows the key for {', '.join(names)}, which is a pattern.",
                    "Say with --identity who must have signed.",
                )
            identity = named[0]
        done = _ssh_keygen("verify", *given, "-n", NAMESPACE, "-I", identity, data=data)
        if done.returncode:
            raise _refused(done, f"The signature is not one of {identity} for these bytes")
    return identity


def _refused(done: subprocess.CompletedProcess[bytes], message: str) -> SignatureError:
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.isprintable()]
    reason = f" ({said[0].rstrip('.')})" if said else ""
    return SignatureError(
        f"{message}{reason}.", "Do not use the release: get it, or the file of signers, again from whom you trust."
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
