"""The page that signs a browser in, shown in place of Prefect's pages to one that is not.

The password comes behind the `#` of the address that `gristmill ui` prints, which a browser sends nowhere, or is typed.
Prefect's pages keep it in the storage of their origin, where no page of another site or port can read it, and send it
with each request. A cookie, which pages of other ports do see, says only that there is one.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

PATH = "/sign-in"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2937; background: #f3f4f6; margin: 0 }
main { max-width: 34rem; margin: 15vh auto; padding: 2rem; background: #fff; border-radius: .75rem }
h1 { margin: 0 0 .5rem; font-size: 1.4rem }
form { display: flex; gap: .5rem } input { flex: 1 } input, button { font: inherit; padding: .4rem .7rem }
code { overflow-wrap: anywhere }
"""
_SCRIPT = """
const said = document.getElementById("said"), form = document.forms[0], stored = "prefect-password";
const next = location.pathname === "/sign-in" ? "/" : location.pathname + location.search;
async function enter(known, otherwise) {
  said.textContent = "Signing in…";
  const asked = fetch("/api/admin/version", {headers: {Authorization: `Basic ${known}`}});
  const status = (await asked.catch(() => ({status: 0}))).status;
  said.textContent = status === 401 ? otherwise : "The server does not answer. Reload this page once it does.";
  if (status !== 200) return;
  localStorage.setItem(stored, known);
  localStorage.setItem("prefect-show-promotional-content", "false");
  document.cookie = `gristmill-${location.port}=signed-in; path=/; max-age=31536000; samesite=lax`;
  location.replace(next);
}
form.addEventListener("submit", event => {
  event.preventDefault();
  enter(btoa(form.password.value.trim()), "This is not the password of this server.");
});
function open() {
  const given = decodeURIComponent(location.hash.slice(1)), kept = localStorage.getItem(stored);
  history.replaceState(null, "", location.pathname + location.search);
  if (given) enter(btoa(given), "This address was of another server. Open the one that gristmill ui shows now.");
  else if (kept) enter(kept, "The password has changed.");
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
    """The page, whose policy is `POLICY`, with the file that the password is kept in, if it is in one."""
    where = f" It is in <code>{escape(kept_in)}</code>, which you can read and nobody else." if kept_in else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Gristmill: sign in</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style><main><h1>Gristmill</h1>"
        f"<p>Prefect's pages are for whoever has the password of this server. Open the address that "
        f"<code>gristmill ui</code> shows at a terminal, or enter the password.{where}</p>"
        '<form><input name="password" type="password" autocomplete="current-password" aria-label="Password" autofocus>'
        '<button>Sign in</button></form><p id="said" role="status"></p>'
        f"<noscript>Prefect's pages need JavaScript.</noscript></main><script>{_SCRIPT}</script></html>"
    )


def address(of_server: str, password: str) -> str:
    """What to open in a browser."""
    return f"{of_server}{PATH}#{password}"
