"""A local S3 server to test buckets against, and the environment in which a client finds it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

CLIENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def client_of(address: str) -> dict[str, str]:
    """The environment of a client of the server at an address."""
    return {**CLIENT, "AWS_ENDPOINT_URL_S3": address}


def one_write_at_a_time(app: Any) -> Any:
    """moto looks at the condition of a write and writes afterwards: as S3 does, nobody writes between."""
    lock = threading.Lock()

    def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] in ("GET", "HEAD"):
            return app(environment, start)  # type: ignore[no-any-return]
        with lock:
            return list(app(environment, start))

    return answer


@contextmanager
def s3_server() -> Iterator[str]:
    """A server that is there within the block; its address."""
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = one_write_at_a_time(server._server.app)
    host, port = server.get_host_and_port()
    # s3fs keeps a file system by its arguments, which do not name the server: it would look for another one
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()
