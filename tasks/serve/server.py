"""The server as a process: releases opened, engines started, a socket bound, requests answered until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Coroutine, Iterator
from http import HTTPStatus
from typing import Any, ClassVar

import h11
import orjson
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from storage.errors import ConfigError, ServerError
from tasks.serve.access import Access
from tasks.serve.api.errors import Refusal
from tasks.serve.app import build
from tasks.serve.config import RequestConfig, ServeConfig
from tasks.serve.control import controlled
from tasks.serve.guards import Guards
from tasks.serve.open_models import open_model
from tasks.serve.pages.feedback import Feedback
from tasks.serve.release import default_name
from tasks.serve.running import Running, Say
from tasks.serve.service import Service
from tasks.serve.watch import Logs, Watch

BACKLOG = 1024
MOST_CONNECTIONS = 4096
ON_THE_WAY_SECONDS, ABORT_SECONDS = 0.5, 2.0
SEND_BUFFER = 1 << 18  # bytes that the kernel keeps for a client that reads slowly


class _Protocol(H11Protocol):
    """HTTP/1.1 with a limit for everything that a client may leave undone, which uvicorn lacks: to send a head, to end
    a body that nobody waits for, to read."""

    bounds = RequestConfig()
    most = MOST_CONNECTIONS
    ending = False  # connections close after their answer
    idle: ClassVar[dict[_Protocol, None]] = {}  # without a request, in the order in which they became so

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request. Where too many connections do, the one that waits longest makes room."""
        super().connection_made(transport)
        self.app_state = {"flow": self.flow}
        self._stuck: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None
        self._begun = False  # a request has begun to arrive
        self._wait()
        if len(self.connections) > self.most:
            oldest = next(iter(self.idle))
            if oldest is self:
                self._refuse(Refusal(503, "The server has too many connections."))
            else:
                oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        super().connection_lost(exc)
        self.idle.pop(self, None)
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Begin the time for the rest of a request with its first byte."""
        if not self._begun:
            self._begun = True
            self._limit()
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()
        super().on_response_complete()  # it may begin a request that has arrived already
        self._note()

    def pause_writing(self) -> None:
        """Begin the time for which a client may not read."""
        super().pause_writing()
        self._stuck = self.loop.call_later(self.bounds.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse what isn't HTTP in our own form."""
        self._refuse(Refusal(400, "The request is not valid HTTP/1.1."))

    def _answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _note(self) -> None:
        if self._answers():
            self.idle.pop(self, None)
            self.cycle.keep_alive = self.cycle.keep_alive and not self.ending

    def _wait(self) -> None:
        self._begun = False
        self.idle[self] = None
        self._limit()

    def _limit(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self.bounds.read_seconds, self._end)

    def _end(self) -> None:
        if self._answers():
            return
        begun = self._begun or self.conn.trailing_data[0]  # behind the request before it
        if begun and self.conn.our_state is h11.IDLE and not self.transport.is_closing():
            self._refuse(Refusal(408, f"The head of the request took longer than {self.bounds.read_seconds:g} s."))
            self._limit()
        else:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer before there is a request, or instead of the rest of one, and close."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = orjson.dumps(refusal.openai())
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (
            h11.Response(status_code=refusal.status, headers=headers, reason=HTTPStatus(refusal.status).phrase),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Server(uvicorn.Server):
    """Says when it listens, and when it drains. Signals are handled by `Stopping`, from before models are loaded until
    engines have ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    def __init__(self, config: uvicorn.Config, say: Say, address: str, drain_seconds: float) -> None:
        super().__init__(config)
        self._say, self._address, self._drain_seconds = say, address, drain_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._say(f"Listening at {self._address}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is on its way too: a client may have sent a request without knowing that this server ends."""
        self._say("Answering what was accepted, then ending. A second signal ends at once.")
        _Protocol.ending = True
        accepted = [connected for listening in sockets or [] for connected in self._accept_waiting(listening)]
        for server in self.servers:
            server.close()
        await asyncio.gather(*accepted, return_exceptions=True)
        await asyncio.sleep(0 if self.force_exit else ON_THE_WAY_SECONDS)
        late = asyncio.get_running_loop().call_later(self._drain_seconds, self._abort)
        await super().shutdown(sockets)
        late.cancel()
        self._abort()
        if tasks := self.server_state.tasks:
            await asyncio.wait(tasks, timeout=ABORT_SECONDS)

    def _abort(self) -> None:
        """Close all connections, by which their requests end."""
        for connection in [*self.server_state.connections]:
            connection.transport.abort()

    def _accept_waiting(self, listening: socket.socket) -> Iterator[Coroutine[Any, Any, Any]]:
        """Accept the connections that the kernel holds, as it ends them when the socket closes."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                connected, _ = listening.accept()
                connected.setblocking(False)
                yield loop.connect_accepted_socket(self._protocol, connected, ssl=self.config.ssl)

    def _protocol(self) -> _Protocol:
        return _Protocol(config=self.config, server_state=self.server_state, app_state={})


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
    if config.watch.logs.format == "json":
        say = logging.getLogger("gristmill.serve").info
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
    _Protocol.bounds = config.requests
    _Protocol.most = min(MOST_CONNECTIONS, _raise_files() // 3)  # a request has two sockets
    settings = uvicorn.Config(
        build(running.service, Feedback(config.state / "feedback")),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
        backlog=BACKLOG,
        timeout_keep_alive=max(1, round(config.requests.read_seconds)),
    )
    stopping.server = _Server(settings, running.say, f"{scheme}://{shown}:{port}", config.drain_seconds)
    await stopping.server.serve(sockets=[listening])


def check(config: ServeConfig) -> None:
    """Raises ConfigError for settings that contradict each other or that this machine can't honour."""
    if not config.models:
        raise ConfigError("No model is named.", "Name a release: gristmill serve tiny/export")
    names = [model.name or default_name(model.release) for model in config.models]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"Two models have the name {twice[0]}.", "Give one a `name`.")
    served = {*names, *(adapter for model in config.models for adapter in model.adapters)}
    if unknown := {*(config.limits.models or ())} - served:
        raise ConfigError(
            f"limits.models allows {min(unknown)}, which is not served.", f"Choose from {', '.join(sorted(served))}."
        )
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
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # of its connections too
        listening.bind(address)
    except OSError as error:
        raise ServerError(
            f"The server can't listen at {config.host}:{config.port}: {error.strerror}.",
            "Choose another --port or --host.",
        ) from error
    return listening


def _raise_files() -> int:
    """Let this process open as many files as its system allows, and return their number."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 3 * MOST_CONNECTIONS if most == resource.RLIM_INFINITY else most
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return most


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
