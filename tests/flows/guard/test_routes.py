"""Every route and websocket of our Prefect server refuses unauthorised requests, which change nothing."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from flows.guard.password import CLIENT, CODE, ui_password
from flows.server import check_address, credentials, named_server
from flows.stop import Stop
from storage.errors import ServerError
from tests.flows.running_ui import ROOT, sent, served, speaking_to, until

METHODS = ("get", "post", "put", "patch", "delete")
EVIL = "https://evil.example"
REFUSED = (401, 403, 421)
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol": "prefect",
}


class Server(NamedTuple):
    """A server, its address, and where its database lies."""

    environment: dict[str, str]
    address: str
    database: Path

    @property
    def password(self) -> dict[str, str]:
        """The header by which it is asked."""
        return {"Authorization": f"Basic {b64encode(self.environment[CLIENT].encode()).decode()}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("prefect")) as environment:
        database = Path(environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"].partition("///")[2])
        yield Server(environment, environment["PREFECT_API_URL"].removesuffix("/api"), database)


@pytest.fixture(scope="module")
def routes(server: Server) -> list[tuple[str, str]]:
    """Each method and path of the API that its OpenAPI document has, with ids in place of parameters."""
    document = httpx.get(f"{server.address}/api/openapi.json", headers=server.password).json()
    found = [
        (method, "/api" + re.sub(r"\{[^}]+\}", str(uuid.UUID(int=7)), path))
        for path, methods in document["paths"].items()
        for method in methods
        if method in METHODS
    ]
    assert len(found) > 150
    return found


def rows(database: Path) -> dict[str, list[Any]]:
    """Everything on a server, except what its own services write."""
    with closing(sqlite3.connect(database)) as opened:
        names = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        return {
            name: sorted(opened.execute(f'SELECT * FROM "{name}"'), key=repr)
            for name in names
            if not name.startswith(("sqlite_", "alembic")) and name not in ("composite_trigger_child_firing",)
        }


def somebody(server: Server) -> dict[str, dict[str, str]]:
    """Who may not ask, by the headers of a request. Those of pages have the password: a page that is signed in may have
    been taken over, and a browser may send what it should not."""
    own = server.address
    return {
        "no password": {"Authorization": ""},
        "another password": {"Authorization": f"Basic {b64encode(b'gristmill:guessed').decode()}"},
        "half a password": {"Authorization": server.password["Authorization"][:-4]},
        "the password as a token": {"Authorization": server.password["Authorization"].replace("Basic", "Bearer")},
        "a page's, no password": {"Authorization": "", "Origin": own, "Sec-Fetch-Site": "same-origin"},
        "a name that leads here": {"Host": f"evil.example:{own.rpartition(':')[2]}"},
        "a name and its origin": {"Host": "evil.example", "Origin": "http://evil.example"},
        "a name that begins like ours": {"Host": "127.0.0.1.evil.example"},
        "a name after a user": {"Host": "127.0.0.1:80@evil.example"},
        "no name": {"Host": ""},
        "another site": {"Origin": EVIL},
        "another scheme": {"Origin": own.replace("http", "https")},
        "another port": {"Origin": "http://127.0.0.1:1"},
        "another name of here": {"Origin": own.replace("127.0.0.1", "localhost")},
        "a sandbox, a file": {"Origin": "null"},
        "no origin": {"Origin": ""},
        "cross-site without an origin": {"Sec-Fetch-Site": "cross-site"},
        "same-site": {"Sec-Fetch-Site": "same-site"},
        "a link to the API": {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        },
    }


def test_no_route_answers_who_may_not_ask_and_nothing_changes(server: Server, routes: list[tuple[str, str]]) -> None:
    sent(server.environment, "POST", "/variables/", {"name": "here", "value": 1}).raise_for_status()
    until("the event of it is not stored", lambda: bool(rows(server.database)["events"]))
    before, passed = rows(server.database), []
    with httpx.Client(base_url=server.address, timeout=60) as client:
        for who, headers in somebody(server).items():
            for method, path in routes:
                answer = client.request(method, path, headers={**server.password, **headers}, json=None)
                if answer.status_code not in REFUSED or "access-control-allow-origin" in answer.headers:
                    passed.append((who, method, path, answer.status_code))
    assert not passed
    assert rows(server.database) == before


def test_each_route_answers_who_may_ask(server: Server, routes: list[tuple[str, str]]) -> None:
    own = {"a command": {}, "a page": {"Origin": server.address, "Sec-Fetch-Site": "same-origin"}}
    tunnel = {"Host": "localhost:9999", "Origin": "http://localhost:9999", "Sec-Fetch-Site": "same-origin"}
    refused = []
    with httpx.Client(base_url=server.address, timeout=60, headers=server.password) as client:
        for who, headers in {**own, "a page by a forwarded port": tunnel}.items():
            for method, path in routes:
                if method == "get" and client.get(path, headers=headers).status_code in REFUSED:
                    refused.append((who, path))
        answers = [client.post("/api/flows/filter", headers=headers) for headers in (*own.values(), tunnel)]
    assert not refused
    assert [answer.status_code for answer in answers] == [200, 200, 200]


def test_headers_that_stand_twice_are_no_name_origin_or_password(server: Server) -> None:
    name = server.address.removeprefix("http://")
    password = server.password["Authorization"]
    whole = [("Host", name), ("Origin", server.address), ("Sec-Fetch-Site", "same-origin"), ("Authorization", password)]
    assert status(server, "GET", "/api/version", whole) == 200
    for twice in whole:
        assert status(server, "GET", "/api/version", [*whole, twice]) in (400, *REFUSED)
    assert status(server, "GET", "/", []) == 400  # without any name


def status(server: Server, method: str, path: str, headers: list[tuple[str, str]]) -> int:
    """The answer to just these headers."""
    with closing(HTTPConnection(server.address.removeprefix("http://"), timeout=60)) as connection:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status


def sockets() -> list[str]:
    """The paths of all websockets."""
    from prefect.server.api.server import API_ROUTERS
    from starlette.routing import WebSocketRoute

    found = [
        "/api" + re.sub(r"\{[^}]+\}", "pool", route.path)
        for router in API_ROUTERS
        for route in router.routes
        if isinstance(route, WebSocketRoute)
    ]
    assert len(found) == 5
    return found


def test_no_websocket_opens_to_a_page_of_another_site_or_tells_anything_without_the_password(server: Server) -> None:
    address, before = server.address.replace("http", "ws", 1), rows(server.database)
    event = {"occurred": "2026-01-01T00:00:00Z", "event": "evil", "resource": {"prefect.resource.id": "evil"}}
    event["id"] = str(uuid.UUID(int=7))
    for path in sockets():
        for who, headers in somebody(server).items():
            if "password" not in who:
                asked = {"Host": server.address.removeprefix("http://"), **HANDSHAKE, **headers}
                assert status(server, "GET", path, [*asked.items()]) == 403, who
        for protocols, first in (([], event), (["prefect"], event), (["prefect"], {"type": "auth", "token": "x"})):
            with pytest.raises((ConnectionClosed, InvalidStatus)):
                speak(f"{address}{path}", protocols, first, event)
    assert rows(server.database) == before


def speak(address: str, protocols: Sequence[str], *messages: Any) -> str | bytes:
    """What a websocket answers to these messages."""
    with connect(address, subprotocols=[Subprotocol(each) for each in protocols] or None) as opened:
        for message in messages:
            opened.send(json.dumps(message))
        return opened.recv(timeout=30)


TOKENS: list[Any] = [7, "ä", "\ud800", []]
ODD: list[Any] = [[], 5, "auth", None, *({"type": "auth", "token": token} for token in TOKENS)]


@pytest.mark.parametrize("first", ODD, ids=range(len(ODD)))
def test_a_websocket_whose_first_message_has_no_form_is_closed_as_any(first: Any, server: Server) -> None:
    address = server.address.replace("http", "ws", 1)
    for path in sockets():
        with pytest.raises(ConnectionClosed) as closed:
            speak(f"{address}{path}", ["prefect"], first)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008


@pytest.mark.soak
def test_websockets_that_say_nothing_take_no_place_and_are_closed(server: Server) -> None:
    address = f"{server.address.replace('http', 'ws', 1)}/api/events/out"

    def is_answered_beside_them() -> bool:
        """Before the first one is closed; on a machine that is busy that may be too soon."""
        with ExitStack() as idle:
            opened = [idle.enter_context(connect(address, subprotocols=[Subprotocol("prefect")])) for _ in range(130)]
            assert sent(server.environment, "POST", "/flows/count", {}).status_code == 200
            try:
                opened[0].recv(timeout=0)
            except TimeoutError:
                with pytest.raises(ConnectionClosed):
                    opened[-1].recv(timeout=60)
                return True
            except ConnectionClosed:
                return False
            raise AssertionError("it tells something")

    assert any(is_answered_beside_them() for _ in range(3))


def test_the_templates_of_deploy_are_taken(server: Server) -> None:
    templates = {path: json.loads(path.read_text()) for path in sorted((ROOT / "deploy").glob("*.json"))}
    for path, template in templates.items():
        if "job_configuration" not in template:
            continue  # a dashboard
        pool = {"name": path.stem, "type": path.stem.partition("-")[0], "base_job_template": template}
        assert sent(server.environment, "POST", "/work_pools/", pool).status_code == 201
    create = [sys.executable, "-m", "prefect", "work-pool", "create", "usual", "--type", "process"]
    done = subprocess.run(create, env=server.environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_websocket_opens_with_the_password(server: Server) -> None:
    address = server.address.replace("http", "ws", 1)
    for path in sockets():
        said = speak(f"{address}{path}", ["prefect"], {"type": "auth", "token": server.environment[CLIENT]})
        assert json.loads(said) == {"type": "auth_success"}


COMMAND = {"command": "touch here"}
REPLACED = {
    "of a run": ("post", "/deployments/{id}/create_flow_run", {"job_variables": COMMAND}),
    "of a run, by Prefect's older name": ("post", "/deployments/{id}/create_flow_run", {"infra_overrides": COMMAND}),
    "of a deployment": ("patch", "/deployments/{id}", {"job_variables": COMMAND}),
    "of a new deployment": ("post", "/deployments/", {"name": "x", "flow_id": "{id}", "job_variables": COMMAND}),
    "of an automation": ("post", "/automations/", {"actions": [{"type": "run-deployment", "job_variables": COMMAND}]}),
    "of a pool": (
        "post",
        "/work_pools/",
        {"name": "x", "base_job_template": {"job_configuration": {"command": "touch here"}}},
    ),
    "of a pool, by default": (
        "patch",
        "/work_pools/x",
        {"base_job_template": {"variables": {"properties": {"command": {"default": "touch here"}}}}},
    ),
    "by another folder": ("patch", "/flow_runs/{id}", {"job_variables": {"working_dir": "/tmp"}}),
    "by Python's path": ("patch", "/flow_runs/{id}", {"job_variables": {"env": {"PYTHONPATH": "/tmp"}}}),
    "by the linker": ("patch", "/flow_runs/{id}", {"job_variables": {"env": {"LD_PRELOAD": "/tmp/x.so"}}}),
    "by another server": ("patch", "/flow_runs/{id}", {"job_variables": {"env": {"PREFECT_API_URL": "http://x"}}}),
    "by a dot": ("patch", "/flow_runs/{id}", {"job_variables": {"env.PYTHONPATH": "/tmp"}}),
    "by a dot, the command": ("patch", "/flow_runs/{id}", {"job_variables": {"command.x": "touch here"}}),
    "by Prefect's logging": (
        "patch",
        "/flow_runs/{id}",
        {"job_variables": {"env": {"PREFECT_LOGGING_SETTINGS_PATH": "/tmp/x.yml"}}},
    ),
    "by OpenSSL": ("patch", "/flow_runs/{id}", {"job_variables": {"env": {"OPENSSL_CONF": "/tmp/x"}}}),
    "by a function of a shell": ("patch", "/flow_runs/{id}", {"job_variables": {"env": {"BASH_FUNC_x%%": "() {:}"}}}),
    "by no environment": ("patch", "/flow_runs/{id}", {"job_variables": {"env": 5}}),
    "by the server's variable": ("patch", "/flow_runs/{id}", {"job_variables": {"env": "{{ prefect.variables.x }}"}}),
    "of a pool, by a block": (
        "patch",
        "/work_pools/x",
        {"base_job_template": {"job_configuration": {"$ref": {"block_document_id": "{id}"}}}},
    ),
    "of a pool, by a variable for a block": (
        "patch",
        "/work_pools/x",
        {"base_job_template": {"job_configuration": {"labels": {"$ref": "{{ x }}"}}}},
    ),
    "by a block": ("patch", "/flow_runs/{id}", {"job_variables": {"labels": {"$ref": {"block_document_id": "{id}"}}}}),
    "by an empty path": ("patch", "/flow_runs/{id}", {"job_variables": {"env.PATH": ""}}),
    "by no path": ("patch", "/flow_runs/{id}", {"job_variables": {"env.PATH": None}}),
    "by a nameless variable": ("patch", "/flow_runs/{id}", {"job_variables": {"env.": ""}}),
    "by an empty folder": ("patch", "/flow_runs/{id}", {"job_variables": {"working_dir": ""}}),
    "by the place of a command": ("patch", "/flow_runs/{id}", {"job_variables": {"command": "{{ command }}"}}),
    "of a pool, by other variables": (
        "patch",
        "/work_pools/x",
        {"base_job_template": {"job_configuration": {"env": "{{ labels }}"}}},
    ),
    "of a pool, by names": (
        "patch",
        "/work_pools/x",
        {"base_job_template": {"job_configuration": {"env": {"{{ name }}": "x"}}}},
    ),
    "of a pool, by a dot": (
        "patch",
        "/work_pools/x",
        {"base_job_template": {"job_configuration": {"env.LD_PRELOAD": "x"}}},
    ),
    "of a pool, by a dot and default": (
        "patch",
        "/work_pools/x",
        {"base_job_template": {"variables": {"properties": {"env.LD_PRELOAD": {"default": "x"}}}}},
    ),
}


@pytest.mark.parametrize("how", REPLACED)
def test_no_request_replaces_the_command_of_a_run(how: str, server: Server) -> None:
    method, path, body = REPLACED[how]
    text = json.dumps(body).replace("{id}", str(uuid.UUID(int=7)))
    for encoded in (text.encode(), text.replace("_v", "\\u005fv").encode(), text.encode("utf-16")):
        answer = httpx.request(
            method,
            f"{server.address}/api{path}".replace("{id}", str(uuid.UUID(int=7))),
            content=encoded,
            headers={"Content-Type": "application/json"},
            auth=credentials(server.environment),
            verify=False,
        )
        assert answer.status_code == 403
        assert "Job variables" in answer.json()["exception_message"]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"command": None},
        {"command": ""},
        {"working_dir": None},
        {"name": "command"},
        {"env": {"HF_TOKEN": "x"}},
        {"env.CUDA_VISIBLE_DEVICES": "1"},
        {"env": {}},
        {"labels": {"PATH": "x"}},
    ],
)
def test_other_job_variables_stay(variables: dict[str, Any], server: Server) -> None:
    flow = sent(server.environment, "POST", "/flows/", {"name": "f"}).json()["id"]
    body = {"name": "d", "flow_id": flow, "job_variables": variables}
    answer = sent(server.environment, "POST", "/deployments/", body)
    assert answer.status_code in (200, 201)
    assert answer.json()["job_variables"] == variables


def test_the_code_gives_the_password_once_and_to_a_page_alone(tmp_path: Path) -> None:
    with served(tmp_path, **{CODE: "once"}) as environment:
        address = environment["PREFECT_API_URL"].removesuffix("/api")
        page = {"Origin": address}
        tried: list[tuple[bytes, dict[str, str]]] = [
            (b"once", {}),
            (b"once", {"Origin": EVIL}),
            (b"other", page),
            (b"", page),
            (b"once" * 1_000, page),
            (b"once", page),
            (b"once", page),
        ]
        answers = [httpx.post(f"{address}/sign-in", content=code, headers=headers) for code, headers in tried]
    assert [answer.status_code for answer in answers] == [401, 403, 403, 403, 403, 200, 403]
    assert b64decode(answers[5].json()["password"]).decode() == environment[CLIENT]


def test_bodies_that_are_no_json_or_too_deep_are_answered(server: Server) -> None:
    for body, expected in ((b"\xff\xfe\x00", 400), (b"{", 422), (b"[" * 200_000, 422), (b"", 200)):
        answer = httpx.post(
            f"{server.address}/api/flows/filter",
            content=body,
            headers={"Content-Type": "application/json"},
            auth=credentials(server.environment),
        )
        assert answer.status_code == expected


def test_a_run_without_the_password_is_told_where_it_is(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", server.environment["PREFECT_API_URL"])
    monkeypatch.setenv(CLIENT, ui_password())  # that of another server
    check_address()
    with speaking_to(os.environ):
        said = pytest.raises(ServerError, match="has another password")
        with said as caught, named_server(server.environment["PREFECT_API_URL"], Stop()):
            pass
    assert f"Set {CLIENT}" in caught.value.remedy
