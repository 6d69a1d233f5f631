"""`gristmill release`: a stranger with the folder and a public key detects every change since the signature."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage.errors import GristmillError, StoreError
from storage.store import Store
from tasks.export.release import profile_of
from tasks.export.release_folder import verify_folder
from tests.flows.commands.test_cli import gristmill, publish

FILES = {"README.md": b"# Model card", "int8/model.safetensors": bytes(range(256)), "gguf/model-f16.gguf": b""}
SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
SHA = "0" * 64
pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@dataclass(frozen=True)
class Signed:
    """A store with a release, its signed copy, the key, and the file of signers."""

    store: Path
    folder: Path
    key: Path
    signers: Path
    digest: str


def make_key(path: Path, passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)
    return path


def allow(key: Path, principals: str, options: str = 'namespaces="gristmill"') -> str:
    return f"{principals} {options} {key.with_suffix('.pub').read_text()}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    home = tmp_path_factory.mktemp("signed")
    store, key, signers = Store(str(home / "store")), make_key(home / "key"), home / "allowed_signers"
    location = publish(store, "export", FILES)
    signers.write_text(allow(key, "me@example.org"))
    saved = gristmill("release", "save", "tiny/export", str(home / "model"), f"--store={store.root}")
    assert saved.returncode == 0, saved.stderr
    assert gristmill("release", "sign", str(home / "model"), f"--key={key}").returncode == 0
    return Signed(home / "store", home / "model", key, signers, store.get(location).digest)


@pytest.fixture
def folder(made: Signed, tmp_path: Path) -> Path:
    """A copy of the signed release, to be spoiled."""
    return Path(shutil.copytree(made.folder, tmp_path / "downloaded"))


def verify(folder: Path, signers: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return gristmill("release", "verify", str(folder), f"--signers={signers}", *more)


def refused(folder: Path, signers: Path, named: str, *more: str) -> str:
    """What is said on a folder that is refused."""
    done = verify(folder, signers, *more)
    assert done.returncode == 1, done.stdout
    assert named in done.stderr
    assert "What to do:" in done.stderr
    return done.stderr


def sign_again(made: Signed, folder: Path, listed: bytes) -> None:
    """Sign a list that the command itself would not: the holder of a key may be mistaken, or worse."""
    (folder / SUMS).write_bytes(listed)
    (folder / SIGNATURE).unlink()
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "gristmill", "-f", str(made.key), str(folder / SUMS)], check=True
    )


def test_a_signed_release_is_accepted_without_its_store_and_by_the_usual_tools(made: Signed, folder: Path) -> None:
    for more in ((), ("--identity=me@example.org",)):
        done = verify(folder, made.signers, *more)
        assert done.returncode == 0, done.stderr
        assert "Signed by me@example.org" in done.stdout
        assert made.digest in done.stdout
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {*FILES, "report.html", "report.json", SUMS, SIGNATURE}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=folder, check=True)
    by_hand = ("-f", str(made.signers), "-I", "me@example.org", "-n", "gristmill", "-s", str(folder / SIGNATURE))
    subprocess.run(["ssh-keygen", "-q", "-Y", "verify", *by_hand], input=(folder / SUMS).read_bytes(), check=True)
    assert gristmill("store", "verify", f"--store={made.store}").returncode == 0, "the store is as it was"


def test_without_a_trusted_signature_nothing_is_accepted(made: Signed, folder: Path, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    signers = tmp_path / "signers"
    for text, named, more in (
        (allow(other, "me@example.org"), "No key in", ()),
        (allow(other, "me@example.org"), "isn't by me@example.org", ("--identity=me@example.org",)),
        (allow(made.key, "me@example.org"), "isn't by you@example.org", ("--identity=you@example.org",)),
        (allow(made.key, "me@example.org", 'namespaces="git"'), "not permitted", ()),
        (allow(made.key, "me@example.org", 'valid-before="20200101"'), "expired", ()),
        (allow(made.key, "*@example.org", ""), "is a pattern", ()),
        ("no signers", "No key in", ()),
    ):
        signers.write_text(text)
        refused(folder, signers, named, *more)
    refused(folder, tmp_path / "nobody", "doesn't exist")
    for data, named in ((b"", "No key in"), (b"not a signature", "No key in"), (os.urandom(2000), "No key in")):
        (folder / SIGNATURE).write_bytes(data)
        refused(folder, made.signers, named)
    os.truncate(folder / SIGNATURE, 1 << 34)
    refused(folder, made.signers, "bytes, more than any release needs")
    (folder / SIGNATURE).unlink()
    refused(folder, made.signers, "isn't signed")


def test_a_signature_for_git_is_none_for_a_release(made: Signed, folder: Path) -> None:
    (folder / SIGNATURE).unlink()
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-f", str(made.key), str(folder / SUMS)]
    subprocess.run(command, check=True)
    made.signers.with_name("any").write_text(allow(made.key, "me@example.org", ""))
    refused(folder, made.signers.with_name("any"), "namespace")


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_found_in_every_file(name: str, made: Signed, folder: Path) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if data else b"\0")
    assert "is missing" not in refused(folder, made.signers, f"{name} has changed")


def test_every_changed_byte_of_the_list_is_found(made: Signed, folder: Path) -> None:
    listed = (folder / SUMS).read_bytes()
    for place in range(0, len(listed), 5):
        (folder / SUMS).write_bytes(listed[:place] + bytes([listed[place] ^ 1]) + listed[place + 1 :])
        with pytest.raises(GristmillError):
            verify_folder(folder, made.signers)


def _swap_for_link(folder: Path) -> None:
    outside = folder.with_name("outside")
    (folder / "README.md").rename(outside)
    (folder / "README.md").symlink_to(outside)  # with the very bytes that were signed


def _swap_folder_for_link(folder: Path) -> None:
    (folder / "int8").rename(folder.with_name("outside"))
    (folder / "int8").symlink_to(folder.with_name("outside"))


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("more")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / "README.md").unlink(), "README.md is missing"),
        (lambda folder: (folder / "int8" / "modeling.py").write_text("print()"), "int8/modeling.py is"),
        (lambda folder: (folder / ".hidden").write_text(""), ".hidden is not part of it"),
        (lambda folder: _write(folder / ".cache/huggingface/download/run.py"), "download/run.py is not part of it"),
        (lambda folder: _write(folder / ".cache/huggingface/.gitattributes"), "huggingface/.gitattributes is not part"),
        (lambda folder: _write(folder / "int8/.gitattributes"), "int8/.gitattributes is not part of it"),
        (lambda folder: (folder / "\x1b[2J").write_text(""), r"'\x1b[2J' is not part of it"),
        (lambda folder: (folder / "int8" / "more").mkdir(), "int8/more/ is not part of it"),
        (lambda folder: os.mkfifo(folder / "pipe"), "pipe isn't a plain file"),
        (_swap_for_link, "README.md isn't a plain file"),
        (_swap_folder_for_link, "int8 isn't a plain file"),
        (lambda folder: (folder / SUMS).unlink(), "it lacks SHA256SUMS"),
        (lambda folder: shutil.rmtree(folder), "isn't a release"),
    ],
)
def test_what_is_missing_too_many_or_a_link_is_named(
    spoil: Callable[[Path], None], named: str, made: Signed, folder: Path
) -> None:
    spoil(folder)
    told = refused(folder, made.signers, named)
    assert "\x1b[2J" not in told


def test_a_list_that_is_a_link_is_not_read(made: Signed, folder: Path) -> None:
    for name in (SIGNATURE, SUMS):
        (folder / name).rename(folder.with_name(name))
        (folder / name).symlink_to(folder.with_name(name))
        refused(folder, made.signers, f"{name} isn't a plain file")


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        (b"", "doesn't list any file"),
        (f"{SHA}  ../outside\n".encode(), "'../outside' is not a path inside"),
        (f"{SHA}  int8/../../outside\n".encode(), "is not a path inside"),
        (f"{SHA}  /etc/passwd\n".encode(), "'/etc/passwd' is not a path inside"),
        (f"{SHA}  ./README.md\n".encode(), "is not a path inside"),
        (f"{SHA}  README.md\r\n".encode(), "Line 1 of SHA256SUMS isn't a SHA-256 with a name"),
        (f"{SHA}  a\n{SHA}  a\n".encode(), "Line 2 of SHA256SUMS: a is listed twice"),
        (f"{SHA}  {SUMS}\n".encode(), "a list excludes itself"),
        (f"{SHA}  a".encode(), "ends within a line"),
        (f"{SHA} *a\n".encode(), "isn't a SHA-256 with a name"),
        (f"{'A' * 64}  a\n".encode(), "isn't a SHA-256 with a name"),
        (f"{SHA}  \x1b[2J\n".encode(), r"\x1b[2J"),
        (f"{SHA}  a\n\n".encode(), "Line 2 of SHA256SUMS isn't a SHA-256"),
        (b"\xff\n", "is not UTF-8"),
    ],
)
def test_a_list_that_leads_astray_is_refused_though_it_is_signed(
    listed: bytes, named: str, made: Signed, folder: Path
) -> None:
    sign_again(made, folder, listed)
    told = refused(folder, made.signers, named)
    assert "\x1b[2J" not in told


def test_a_list_of_gigabytes_is_refused_unread(made: Signed, folder: Path) -> None:
    os.truncate(folder / SUMS, 1 << 34)
    refused(folder, made.signers, "bytes, more than any release needs")


def test_only_a_sound_copy_outside_the_store_is_signed(made: Signed, folder: Path, tmp_path: Path) -> None:
    inside = next(made.store.glob("artifacts/export/*"))
    done = gristmill("release", "sign", str(inside), f"--key={made.key}")
    assert (done.returncode, "gristmill release save" in done.stderr) == (1, True)
    assert "doesn't exist" in gristmill("release", "sign", str(folder), "--key=nowhere").stderr
    no_key = tmp_path / "text"
    no_key.write_text("no key")
    assert "could not sign" in gristmill("release", "sign", str(folder), f"--key={no_key}").stderr
    (folder / "README.md").write_text("another card")
    done = gristmill("release", "sign", str(folder), f"--key={made.key}")
    assert (done.returncode, "README.md has changed" in done.stderr) == (1, True)


def test_save_writes_nothing_over_and_takes_only_a_sound_release(made: Signed, tmp_path: Path) -> None:
    at = f"--store={made.store}"
    assert "exists already" in gristmill("release", "save", "tiny/export", str(made.folder), at).stderr
    inside = f"{made.store}/artifacts/export/copy"
    assert "is in a store" in gristmill("release", "save", "tiny/export", inside, at).stderr
    store = Store(str(tmp_path / "store"))
    publish(store, "pretrain", {"model": b""})
    at = f"--store={store.root}"
    assert "isn't a release" in gristmill("release", "save", "tiny/pretrain", str(tmp_path / "a"), at).stderr
    location = publish(store, "export", FILES)
    path = store.get(location).path / "README.md"
    path.chmod(0o644)
    path.write_bytes(b"# Model cart")
    assert "changed" in gristmill("release", "save", "tiny/export", str(tmp_path / "b"), at).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_without_ssh_keygen_the_error_says_what_to_install(
    made: Signed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(made.folder, made.signers, "ssh-keygen, which signs and checks signatures, is not on the PATH")


def test_what_nobody_signed_is_checked_by_its_own_list_where_that_is_asked_for(made: Signed, folder: Path) -> None:
    (folder / SIGNATURE).unlink()
    done = gristmill("release", "verify", str(folder))
    assert (done.returncode, "--unsigned" in done.stderr) == (1, True)
    done = gristmill("release", "verify", str(folder), "--unsigned", f"--signers={made.signers}")
    assert (done.returncode, "either --signers or --unsigned" in done.stderr) == (1, True)
    done = gristmill("release", "verify", str(folder), "--unsigned")
    assert done.returncode == 0, done.stderr
    assert "That list is not signed" in done.stdout
    assert made.digest in done.stdout
    (folder / "README.md").write_bytes(b"# Model cart")
    done = gristmill("release", "verify", str(folder), "--unsigned")
    assert (done.returncode, "README.md has changed" in done.stderr) == (1, True)


def test_what_a_hub_and_its_client_add_is_no_part_of_a_release_and_no_damage(made: Signed, folder: Path) -> None:
    (folder / ".gitattributes").write_text("*.gguf filter=lfs")
    (folder / ".cache" / "huggingface").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "README.md.metadata").write_text("commit")
    done = verify(folder, made.signers)
    assert done.returncode == 0
    assert "Not signed: .cache/huggingface/README.md.metadata, .gitattributes" in " ".join(done.stdout.split())
    (folder / ".cache" / "more").write_text("")
    refused(folder, made.signers, ".cache/more is not part of it")
    for name in (".gitattributes", ".cache/huggingface/README.md.metadata"):
        (folder / ".cache" / "more").unlink(missing_ok=True)
        (folder / name).unlink()
        (folder / name).symlink_to("/etc/hostname")
        refused(folder, made.signers, f"{name} isn't a plain file")
        (folder / name).unlink()
        (folder / name).write_text("")
    shutil.rmtree(folder / ".cache" / "huggingface")
    os.mkfifo(folder / ".cache" / "huggingface")
    refused(folder, made.signers, ".cache/huggingface isn't a plain file")


def test_of_many_faults_three_are_named(made: Signed, folder: Path) -> None:
    listed = "".join(f"{SHA}  {number:06}\n" for number in range(100_000))
    sign_again(made, folder, listed.encode())
    told = refused(folder, made.signers, "000000 is missing; 000001 is missing; 000002 is missing and 100,00")
    assert len(told) < 1000


def test_save_says_in_a_sentence_where_it_can_t_write(made: Signed, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "x", Path("/proc/x"), tmp_path / ("x" * 300)):
        done = gristmill("release", "save", "tiny/export", str(place), f"--store={made.store}")
        assert (done.returncode, "can't be used" in done.stderr, "gc" in done.stderr) == (1, True, False), done.stderr


def test_the_profile_of_a_release_is_known_by_each_of_its_names(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    first, second = (publish(store, "export", {"README.md": text}, of=text.decode()) for text in (b"one", b"two"))
    names = ("tiny/export", "tiny/export@1", "released/tiny@2", first, second[:12])
    assert {profile_of(store, name) for name in names} == {"tiny"}
    (tmp_path / "store" / "refs" / "tiny" / "export.json").unlink()
    with pytest.raises(StoreError, match="of no profile"):
        profile_of(store, first)
