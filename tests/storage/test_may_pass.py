"""Errors worth a retry: those of a network or a server, never those of a profile or data."""

from __future__ import annotations

import socket

import httpx
import pytest

from storage.errors import SourceError, StoreError
from storage.files.remote import may_pass, reaching

REQUEST = httpx.Request("GET", "https://hub.example")


def answered(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("no", request=REQUEST, response=httpx.Response(status, request=REQUEST))


@pytest.mark.parametrize(
    ("cause", "passes"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (socket.gaierror(), True),
        (httpx.ConnectError("gone"), True),
        (answered(503), True),
        (answered(429), True),
        (answered(404), False),
        (PermissionError(), False),
        (FileNotFoundError(), False),
        (ValueError(), False),
    ],
)
def test_only_what_a_network_or_a_server_failed_may_pass(cause: Exception, passes: bool) -> None:
    error = SourceError("The hub can't be read.", "Wait.")
    error.__cause__ = cause
    assert may_pass(error) is passes
    assert not may_pass(SourceError("No file matches."))


def test_a_store_that_is_away_may_come_again() -> None:
    with pytest.raises(StoreError) as caught, reaching("s3://bucket"):
        raise ConnectionRefusedError
    assert may_pass(caught.value)


@pytest.mark.parametrize(("status", "passes"), [(503, True), (429, True), (403, False)])
def test_a_bucket_that_answers_that_it_is_busy_may_be_asked_again(status: int, passes: bool) -> None:
    """s3fs makes an OSError of what botocore says."""
    from botocore.exceptions import ClientError
    from s3fs.errors import translate_boto_error

    answer = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}
    with pytest.raises(StoreError) as caught, reaching("s3://bucket"):
        raise translate_boto_error(ClientError(answer, "PutObject"))
    assert may_pass(caught.value) is passes
