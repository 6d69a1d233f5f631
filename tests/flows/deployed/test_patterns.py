"""What Prefect's server holds texts against: it refuses credentials as we do, and in time that grows with the text."""

from __future__ import annotations

import random
import re

import pytest

from flows.deployed.patterns import CHARACTERS, NO_CREDENTIALS, NO_SALT, OVERRIDE, keys
from profiles.schema import Profile
from storage.credentials import has_credentials
from tests.storage.test_credentials import ENCODED, FREE, HELD

LENGTH = 20_000  # what took a minute was a tenth of this
ADVERSE = (
    "://?%", "://?", "://a:", "%3A%2F%2Fa:", "%3A%2F%2F", "?%26%", "token", "a", "a.", "s3://x?token", "https://",
    "%25", "&%x", "s3://?key%", "salt :", "salt:", "filter={salt: ", "filter={pii: salt: ", "pii", "salt:\n",
    "salt: null ", "filter.languages.de.", "://?#", ".", "=", " ", "\n", "_", "?-token-", "@", "a://b@", "?", "\\",
    "export.licences.", "x://u:1", "sk-", "hf_", "s3://%3A", "s3://%3Aa:1/",
)  # fmt: skip
PIECES = (
    "s3://",
    "https://",
    "me",
    ":",
    "pw",
    "@",
    "host",
    "/",
    "?",
    "&",
    "token",
    "=",
    "key",
    "%40",
    "%3a",
    "%252F",
    "80",
    "sig",
)


@pytest.mark.parametrize("url", [*HELD, *ENCODED])
def test_credentials_are_refused(url: str) -> None:
    assert has_credentials(url)
    assert not re.search(NO_CREDENTIALS, url)
    assert not re.search(NO_CREDENTIALS, f"runtime.store={url}")
    assert not re.search(NO_CREDENTIALS, f'download.sources=[{{kind: files, name: mine, paths: ["{url}"]}}]')


def test_a_password_may_hold_a_space_where_the_value_is_a_url() -> None:
    assert not re.search(NO_CREDENTIALS, "runtime.store=ftp://me:my pass@host/store")
    assert re.search(NO_CREDENTIALS, "description=see ftp://me:21 or write to me@host")


@pytest.mark.parametrize(
    "text",
    [*FREE, "100%25 20%251", "a%2525", "a%2F%2Fb", "to%6ben=x", "s3://b/a%20b?q=a%20b&c=1", "https://h/?caf%C3%A9=1"],
)
def test_other_texts_are_taken(text: str) -> None:
    assert re.search(NO_CREDENTIALS, f"runtime.store={text}")


def test_what_we_refuse_in_a_word_the_pattern_refuses() -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices(PIECES, k=rng.randint(3, 12))) for _ in range(20_000)]
    held = [word for word in words if has_credentials(word)]
    assert len(held) > 1_000
    missed = [word for word in held if re.search(NO_CREDENTIALS, f"runtime.store={word}")]
    assert len(missed) * 500 < len(held), missed


@pytest.mark.parametrize("unit", ADVERSE)
def test_no_pattern_backtracks(unit: str) -> None:
    """One that does would be at it until the tests are given up."""
    patterns = (CHARACTERS, NO_CREDENTIALS, OVERRIDE, NO_SALT, f"^({keys(Profile)})=")
    text = (unit * LENGTH)[:LENGTH]
    for given in (text, f"description={text}", f"description=s3://x?{text}", f"filter.pii={text}", f"{text}=\ud800"):
        for pattern in patterns:
            re.search(pattern, given)


@pytest.mark.parametrize(
    "given",
    [
        "filter.pii.salt=a secret",
        "filter.pii={salt: abc}",
        'filter={pii: {"salt" : "abc"}}',
        "filter.pii=salt: abc",
        "filter.pii.salt=nullsecret9",
        "filter.pii.salt=~salt",
        "filter.pii={salt: nullx}",
        "filter.pii={salt: ~x}",
        "filter.pii.salt={mysalt: x}",
        "filter.pii={salt: {password: y}}",
        "filter.pii=salt:\n  abc",
        "filter={pii: {salt: {env: A}}, x: {pii: {salt: b}}}",
    ],
)
def test_a_salt_in_the_open_is_seen(given: str) -> None:
    assert not re.search(NO_SALT, given)


@pytest.mark.parametrize(
    "given",
    [
        "filter.pii.salt={env: SALT}",
        "filter.pii.salt.env=SALT",
        "filter.pii.salt=null",
        "filter.pii.salt=",
        "filter.pii={salt: {env: SALT}}",
        "filter={pii: {salt: ~}}",
        "filter.pii={salt: }",
        "description=salt: a pinch",
        "filter.pii={desalt: x}",
        "filter.pii=\nsalt:\n  env: X\n",
        "filter.pii.salt=\n  env: X",
        "filter.pii.salt=Null",
        "filter.pii=\n  salt:\n    file: x",
        "filter={language: {scores: {salt: 0.5}}}",
        "filter.pii=salt:\nactions: {}",
    ],
)
def test_a_salt_that_a_variable_has_is_not(given: str) -> None:
    assert re.search(NO_SALT, given)
