"""The server as a process: releases opened, engines started, a socket bound, requests answered until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from storage.errors import ConfigError, ServerError
from tasks.serve.access import Access
from tasks.serve.app import build
from tasks.serve.config import ServeConfig
from tasks.serve.control import controlled
from tasks.serve.guards import Guards
from tasks.serve.open_models import open_model
from tasks.serve.pages.feedback import Feedback
from tasks.serve.running import Running, Say
from tasks.serve.service import Service
from tasks.serve.watch import Logs, Watch

BACKLOG = 1024


class _Protocol(H11Protocol):
    """HTTP/1.1 with a time limit for the head of a request, which uvicorn lacks."""

    head_seconds = 30.0

    def connection_made(self, transport: Any) -> None:
        """Begin the time for the head of the first request."""
        super().connection_made(transport)
        self.loop.call_later(self.head_seconds, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Says when it listens, and when it drains. Signals are handled by `Stopping`, from before models are loaded until
    engines have ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    def __init__(self, config: uvicorn.Config, say: Say, address: str) -> None:
        super().__init__(config)
        self._say, self._address = say, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say(f"Listening at {self._address}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._say("Answering what was accepted, then ending. A second signal ends at once.")
        await super().shutdown(sockets)


class Stopping:
    """What a signal does: it interrupts the loading of models, and has a server drain. A second one ends that."""

    def __init__(self) -> None:
        self.server: _Server | None = None
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        if self.server is None:
            assert self._task is not None
            self._task.cancel()
        elif self.server.should_exit:
            self.server.force_exit = True
        else:
            self.server.should_exit = True


async def run(config: ServeConfig, say: Say) -> None:
    """Serve until SIGTERM or SIGINT. Raises what opening a release raises, ConfigError for settings that contradict
    each other, and ServerError for an address that is in use."""
    check(config)
    stopping, listening = Stopping(), bind(config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(listening))
        config.state.mkdir(parents=True, exist_ok=True)
        config.state.chmod(0o700)
        logs = Logs(config.watch.logs)
        stack.callback(logs.stop)
        access = stack.enter_context(contextlib.closing(Access(config.limits, config.state)))
        if not is_loopback(config.host):
            say("Requests of other machines need a key: gristmill serve keys make")
        guards = Guards(config.guards)
        watch = stack.enter_context(contextlib.closing(Watch(config.watch, config.state)))
        running = Running(Service(config, access, guards, watch), say)
        try:
            async with controlled(running, config.state):
                for model in config.models:
                    await open_model(running, model)
                await _listen(config, running, listening, stopping)
        finally:
            served = [*running.service.models.values(), *(one for one, _ in running.service.also.values())]
            await asyncio.gather(*(running.end(one) for one in served if one.base is None), *running.ending)


async def _listen(config: ServeConfig, running: Running, listening: socket.socket, stopping: Stopping) -> None:
    scheme = "https" if config.tls_certificate else "http"
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _Protocol.head_seconds = config.requests.read_seconds
    settings = uvicorn.Config(
        build(running.service, Feedback(config.state / "feedback")),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(config.drain_seconds)),
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
        backlog=BACKLOG,
    )
    stopping.server = _Server(settings, running.say, f"{scheme}://{shown}:{port}")
    await stopping.server.serve(sockets=[listening])


def check(config: ServeConfig) -> None:
    """Raises ConfigError for settings that contradict each other or that this machine can't honour."""
    if not config.models:
        raise ConfigError("No model is named.", "Name a release: gristmill serve tiny/export")
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise ConfigError("TLS needs both tls_certificate and tls_key.", "Set both, or none.")
    if config.tls_certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(config.tls_certificate, config.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{config.tls_certificate} with {config.tls_key} is not usable: {error}.", "Give PEM files."
            ) from error
    for model in config.models:
        if (model.also is None) != (model.share == 0):
            raise ConfigError(f"{model.release}: `also` and `share` need each other.", "Set both, or none.")


def bind(config: ServeConfig) -> socket.socket:
    """The socket to listen at. Raises ServerError for an address that is in use, or isn't one of this machine."""
    try:
        family, *_, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise ServerError(
            f"The server can't listen at {config.host}:{config.port}: {error.strerror}.",
            "Choose another --port or --host.",
        ) from error
    return listening


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
