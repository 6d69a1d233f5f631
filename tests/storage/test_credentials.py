"""Credentials: what counts as one, and that errors, logs and tracebacks never show one."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from storage.credentials import has_credentials, redact
from storage.errors import ConfigError, StoreError
from storage.store import Store

ROOT = Path(__file__).parents[2]
HELD = {
    "s3://key:secret@bucket/store": "s3://***@bucket/store",
    "s3://key:se/cr+et=@bucket/store": "s3://***@bucket/store",
    "ftp://me:pass@word@host/store": "ftp://***@host/store",
    "simplecache::s3://key:12345@bucket": "simplecache::s3://***@bucket",
    "https://:token@host/file": "https://***@host/file",
    "https://token@host/file": "https://***@host/file",
    "https://host/file?token=abc&page=2": "https://host/file?token=***&page=2",
    "https://host/file?page=2&sig=a%2Fb": "https://host/file?page=2&sig=***",
    "https://host/file?X-Amz-Credential=AK&X-Amz-Signature=ab": "https://host/file?X-Amz-Credential=***&X-Amz-Signature=***",
    "https://host/file?api_key=abc": "https://host/file?api_key=***",
    "https://host/file?tokenSecret=abc": "https://host/file?tokenSecret=***",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH": "***",
    f"the key gsk-0aA1bB2c-{'aZ09' * 10}xyz.": "the key ***.",
    "s3://bucket/x?pass=abcdef123": "s3://bucket/x?pass=***",
    "s3://bucket/x?jwt=abcdef123": "s3://bucket/x?jwt=***",
}
ENCODED = [
    "memory://bucket/x?to%6ben=hunter2Secret",
    "s3:%2f%2fme:hunter2Secret@bucket/x",
    "s3:%252F%252Fme:hunter2Secret@b",
    "s3://me%3Ahunter2Secret%2540bucket/x",
]
FREE = [
    "data/sk-wikipedia-articles-of-2026-without-duplicates.jsonl",
    "store",
    "s3://bucket/store",
    "s3://bucket/a@b",
    "sftp://me@host/store",
    "abfs://container@account.dfs.core.windows.net/a",
    "http://127.0.0.1:4200/api",
    "http://127.0.0.1:4200/a@b",
    "http://[::1]:4200/a@b",
    "data/part-?key=1/*.jsonl",
    "see http://127.0.0.1:4200, or write to me@example.com",
    "filter.toxicity.max_score=0.5",
    "https://h/t.json?tokenizer=abc",
    "https://h/t?max_tokens=5&secretary=bob",
    "https://h/?filter%5Bname%5D=x&caf%C3%A9=1",
]


@pytest.mark.parametrize("url", HELD)
def test_credentials_are_found_and_taken_out(url: str) -> None:
    assert has_credentials(url)
    assert redact(f"The store {url} can't be reached.") == f"The store {HELD[url]} can't be reached."


@pytest.mark.parametrize("url", ENCODED)
def test_an_encoded_url_hides_nothing(url: str) -> None:
    assert has_credentials(url)
    with pytest.raises(ConfigError, match="holds a password or a token") as caught:
        Store(url)
    assert "hunter2Secret" not in redact(caught.value.message)


@pytest.mark.parametrize("text", FREE)
def test_what_has_no_credentials_is_left_as_it_is(text: str) -> None:
    assert not has_credentials(text)
    assert redact(text) == text


def test_connection_strings_and_headers_are_tokens_wherever_they_stand() -> None:
    key = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo="
    assert redact(f"AccountName=me;AccountKey={key};a") == "AccountName=me;AccountKey=***;a"
    assert redact(f"Authorization: Bearer {key}") == "Authorization: Bearer ***"


def test_a_password_with_a_space_is_one(tmp_path: Path) -> None:
    assert has_credentials("ftp://me:my pass@host/store")


def test_an_error_quotes_no_credentials_whoever_wrote_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSPEC_FTP_PASSWORD", "correct-horse")
    monkeypatch.setenv("FSSPEC_S3", '{"key": "an-access-key", "client_kwargs": {"aws_secret_token": "battery-staple"}}')
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "falsehood")
    said = "login correct-horse at s3://a:b@c with an-access-key, battery-staple, falsehood"
    error = StoreError(said, said)
    assert str(error) == " ".join(["login *** at s3://***@c with ***, ***, falsehood"] * 2)
    assert error.args == (error.message, error.remedy)


def test_a_store_refuses_a_url_with_a_password_and_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match=r"memory://\*\*\*@place.*FSSPEC_PROTOCOL_OPTION") as refused:
        Store("memory://me:hunter2@place")
    assert "hunter2" not in str(refused.value)


def test_logs_and_tracebacks_of_a_guarded_process_show_none() -> None:
    program = (
        "import logging\n"
        "from storage.credentials import guard\n"
        "guard()\n"
        "guard()\n"
        "logging.basicConfig(level='INFO')\n"
        "logging.info('opening %s', 's3://key:hunter2@bucket')\n"
        "try:\n"
        "    raise ValueError('s3://key:hunter2@bucket')\n"
        "except ValueError:\n"
        "    logging.exception('failed')\n"
        "raise ValueError('ftp://key:hunter2@bucket')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "hunter2" not in done.stderr
    assert done.stderr.count("s3://***@bucket") == 2
    assert done.stderr.count("Traceback") == 2
    assert done.stderr.endswith("ValueError: ftp://***@bucket\n")
    assert logging.getLogRecordFactory() is not None
