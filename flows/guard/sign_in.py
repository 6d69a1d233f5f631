"""The sign-in page, shown in place of Prefect's pages to a browser that is not signed in.

The address that `gristmill ui` prints has a code behind its `#`, which a browser never sends by itself. The page
exchanges it for the password, once, so the address in the browser's history opens nothing. Or somebody types the
password. Prefect's pages keep it in their origin's storage, which no page of another site or port can read, and send it
with each request. A cookie, which pages of other ports do see, says only that a password is stored.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

PATHS = ("/sign-in", "/login")  # the second is Prefect's own form, its pages' target once the password has changed
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2937; background: #f3f4f6; margin: 0 }
main { max-width: 34rem; margin: 15vh auto; padding: 2rem; background: #fff; border-radius: .75rem }
h1 { margin: 0 0 .5rem; font-size: 1.4rem }
form { display: flex; gap: .5rem } input { flex: 1 } input, button { font: inherit; padding: .4rem .7rem }
code { overflow-wrap: anywhere }
"""
_SCRIPT = """
const said = document.getElementById("said"), form = document.forms[0], stored = "prefect-password";
const here = ["/sign-in", "/login"].includes(location.pathname);
const ask = (path, options) => fetch(path, options).catch(() => ({status: 0}));
async function enter(known, otherwise) {
  said.textContent = "Signing in…";
  const {status} = await ask("/api/admin/version", {headers: {Authorization: `Basic ${known}`}});
  const refused = status === 401 ? otherwise : "The server does not answer. Reload this page once it does.";
  if (status !== 200) { said.textContent = refused; return; }
  localStorage.setItem(stored, known);
  localStorage.setItem("prefect-show-promotional-content", "false");
  const cookie = `gristmill-${location.port}=signed-in`;
  document.cookie = `${cookie}; path=/; max-age=31536000; samesite=lax`;
  if (document.cookie.includes(cookie)) here ? location.replace("/deployments") : location.reload();
  else said.textContent = "Prefect's pages need a cookie, which your browser does not take.";
}
form.addEventListener("submit", event => {
  event.preventDefault();
  const typed = form.password.value.trim();
  if (/^[\\x21-\\x7e ]+$/.test(typed)) enter(btoa(typed), "This is not the password of this server.");
  else said.textContent = "This is not the password of this server.";
});
async function open() {
  const code = here ? location.hash.slice(1) : "", kept = localStorage.getItem(stored);
  if (here) history.replaceState(null, "", location.origin + location.pathname);
  const answer = code ? await ask("/sign-in", {method: "POST", body: code}) : {status: 0};
  if (answer.status === 200) enter((await answer.json()).password, "");
  else if (kept) enter(kept, "The password has changed.");
  else if (code) said.textContent = "This address has been used, or is of another server.";
}
addEventListener("hashchange", open);  // an address that is pasted here differs behind the # alone
open();
"""


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


POLICY = (
    f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(_STYLE)}; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(kept_in: str | None) -> str:
    """The page, for the policy `POLICY`. It names the file that the password is `kept_in`, if any."""
    where = f" It is in <code>{escape(kept_in)}</code>, which only you can read." if kept_in else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Gristmill: sign in</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><main><h1>Gristmill</h1>"
        "<p>Prefect's pages need the password of this server. Open the address that "
        f"<code>gristmill ui</code> shows at a terminal, or enter the password.{where}</p>"
        '<form><input name="password" type="password" autocomplete="current-password" aria-label="Password" autofocus>'
        '<button>Sign in</button></form><p id="said" role="status"></p>'
        f"<noscript>Prefect's pages need JavaScript.</noscript></main><script>{_SCRIPT}</script></html>"
    )


def address(of_server: str, code: str) -> str:
    """The address to open in a browser."""
    return f"{of_server}{PATHS[0]}#{code}"
