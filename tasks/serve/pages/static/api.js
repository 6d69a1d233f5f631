// Requests to this server, with the key that its user has entered. The key is kept until the tab is closed.

import {wordsOf} from "./sse.js";

const KEY = "gristmill-key";
let typed = ""; // the key, in a browser that keeps nothing

/** An answer other than 2xx, in the server's own words. */
export class Refused extends Error {}

/** The response to a request. Asks for a key at a 401, and tries again with it. Raises Refused. */
export async function ask(path, body, signal) {
  for (;;) {
    const key = keptKey(), headers = {...(key && {Authorization: `Bearer ${key}`})};
    if (body) headers["Content-Type"] = "application/json";
    const request = {method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body)};
    const began = performance.now();
    let response;
    try {
      response = await fetch(path, {...request, cache: "no-store", redirect: "error"});
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused("The server can't be reached.");
    }
    if (response.ok) return Object.assign(response, {began});
    const words = await response.json().then(wordsOf, () => "") || `The server answered ${response.status}.`;
    if (response.status !== 401 || !(await enterKey(words))) throw new Refused(words + later(response));
  }
}

const later = ({headers}) => {
  const seconds = Number(headers.get("Retry-After"));
  return seconds > 0 ? ` Try again in ${seconds.toLocaleString("en")} s.` : "";
};

function keptKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return typed;
  }
}

/** Whether somebody has entered a key. `words` say why it is needed. */
export function enterKey(words) {
  const dialog = document.getElementById("key"), field = dialog.querySelector("input");
  dialog.querySelector("[role=alert]").textContent = words;
  if (!dialog.open) {
    field.value = dialog.returnValue = "";
    dialog.querySelector("[value=cancel]").onclick = () => dialog.close();
    dialog.showModal();
  }
  return new Promise(resolve => dialog.addEventListener("close", () => {
    if (dialog.returnValue === "enter") {
      typed = field.value.trim();
      try {
        sessionStorage.setItem(KEY, typed);
      } catch {} // kept in `typed` only
    }
    resolve(dialog.returnValue === "enter");
  }, {once: true}));
}
