"""Strings that `gristmill release push` takes for a password or a token, and others that it doesn't. None is real."""

from __future__ import annotations

import base64
import json
import random
import string
from pathlib import Path

import pytest

from tasks.export.push.outgoing import look, secrets_of
from tasks.export.push.secrets import digest_of, find_secrets
from tests.flows.commands.test_push import TOKEN, folder, push, saved, with_text  # noqa: F401


def drawn(length: int, letters: str = string.ascii_letters + string.digits, seed: int = 1) -> str:
    return "".join(random.Random(seed).choices(letters, k=length))


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


JWT = ".".join((encoded('{"alg":"HS256"}'), encoded('{"sub":"somebody"}'), drawn(43)))
BLOCK = "\n".join(drawn(64, seed=seed) for seed in range(4))
FOUND = {
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\n{BLOCK}\n",
    "openssh": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{BLOCK}\n",
    "pem in JSON": json.dumps({"key": f"-----BEGIN PRIVATE KEY-----\n{BLOCK}\n"}),
    "AWS secret": f"aws_secret_access_key = {drawn(40)}",
    "AWS id": f"id: AKIA{drawn(16, string.ascii_uppercase)}",
    "Google": f"AIza{drawn(35)}",
    "GitLab": f"glpat-{drawn(20)}",
    "GitHub": f"ghp_{drawn(36)}",
    "JWT": JWT,
    "JSON": json.dumps({"api_key": drawn(32)}),
    "JSON in JSON": json.dumps(json.dumps({"api_key": drawn(32)})),
    "YAML": f"password: {drawn(24)}",
    "hub": TOKEN,
    "hub, after _": f"my_{TOKEN}",
    "URL": f"https://me:{drawn(12)}@example.org/x",
    "query": f"https://example.org/x?key={drawn(24)}",
    "Azure": f"AccountKey={drawn(44)}",
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_a_secret_is_found_in_text_and_in_other_bytes(text: str) -> None:
    assert list(find_secrets(text.encode()))
    assert list(find_secrets(b"\xff\x00" + text.encode() + b"\x00\xfe"))


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/x?key=YOUR_API_KEY and ?key=value and #sig=3",
        "https://user:password@example.org, https://USER:$PASSWORD@example.org, http://localhost:8080/a@b",
        'token = os.environ["HF_TOKEN"]; api_key=settings.language_model.api_key_2',
        '{"tokenizer": "' + "0a1b" * 16 + '", "max_new_tokens": 123456789012345678}',
        '{"eos_token": "<|endoftext|>", "pad_token_id": 1234567890, "secret": "of a good soup"}',
        "-----BEGIN PRIVATE KEY----- is how a key begins, password: correcthorsebatterystaple",
        "a tokenizer",
        f"-----BEGIN SSH SIGNATURE-----\n{BLOCK}\n-----END SSH SIGNATURE-----",
        f"-----BEGIN PUBLIC KEY-----\n{BLOCK}\n",
    ],
)
def test_words_and_stand_ins_are_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TOKEN", "tokenizer")
    assert list(find_secrets(text.encode())) == []


def test_a_secret_of_this_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_TOKEN", "tr0ub4dor")
    assert [value for _, value in find_secrets(b"it is tr0ub4dor")] == [b"tr0ub4dor"]


def test_files_of_any_kind_are_searched(tmp_path: Path) -> None:
    from storage.digests import list_files, sums

    head = json.dumps({"__metadata__": {"by": TOKEN}}).encode()
    files = {
        "model.safetensors": len(head).to_bytes(8, "little") + head,
        "model.gguf": b"GGUF\x03\0\0\0" + TOKEN.encode(),
        "notes.bin": TOKEN.encode(),
        "wide.txt": TOKEN.encode("utf-16"),
        "odd.txt": b"\xe9t\xe9 " + TOKEN.encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "SHA256SUMS").write_text(sums(list_files(tmp_path)))
    found = {one.where.partition(",")[0] for one in look(tmp_path).findings if one.digest}
    assert found == set(files)


def test_what_is_no_secret_is_allowed_by_its_digest_alone(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    told = with_text(folder, f"{TOKEN}\nhttps://me:{drawn(12)}@example.org")
    first, second = digest_of(TOKEN.encode()), digest_of(drawn(12).encode())
    assert set(secrets_of(look(told))) == {first, second}
    code, said, error = push(told, str(tmp_path / "there"), "--yes", "--allow-secret", first)
    assert (code, f"--allow-secret {second}" in error, f"--allow-secret {first}" in error) == (1, True, False)
    assert TOKEN not in said + error
    allowed = ("--allow-secret", first, "--allow-secret", second)
    assert push(told, str(tmp_path / "there"), "--yes", *allowed)[0] == 0
