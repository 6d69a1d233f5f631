"""A local S3 server to test buckets against, and the environment in which a client finds it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

CLIENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def client_of(address: str) -> dict[str, str]:
    """The environment of a client of the server at an address."""
    return {**CLIENT, "AWS_ENDPOINT_URL_S3": address}


@contextmanager
def s3_server() -> Iterator[str]:
    """A server that is there within the block; its address."""
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # s3fs keeps a file system by its arguments, which do not name the server: it would look for another one
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()
