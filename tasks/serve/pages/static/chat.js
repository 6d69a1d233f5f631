// The chat page: turns of a question and its answers, streamed from /v1/chat/completions.

import {Refused, ask, enterKey} from "./api.js";
import {change, chats, forget, keep, settings} from "./history.js";
import {make, show} from "./markdown.js";
import {answers} from "./sse.js";

const $ = id => document.getElementById(id);
const log = $("log"), question = $("question"), scroll = $("scroll"), NUMBERS = ["temperature", "top_p", "max_tokens"];
const ENDS = {
  length: "The answer reached the limit of tokens.",
  content_filter: "The server's policy ended this answer.",
  tool_calls: "The model asked for a tool, which this page can't use.",
};
const CUT = "The connection ended before the answer did.";
const begun = turns => ({id: `${Date.now()}-${Math.random()}`, title: "", turns});
const shown = turn => turn.answers[turn.at];
const say = words => { $("said").textContent = words; };
let chat = begun([]), running = null; // what stops the answer that is being written

// Asking

function messagesBefore(of, turn, system) {
  const earlier = of.turns.slice(0, of.turns.indexOf(turn)).filter(each => shown(each)?.text);
  const said = earlier.flatMap(each => [
    {role: "user", content: each.question},
    {role: "assistant", content: shown(each).text},
  ]);
  return [...(system ? [{role: "system", content: system}] : []), ...said, {role: "user", content: turn.question}];
}

async function answer(turn) {
  const of = chat, chosen = settings(), item = turn.item ?? place(turn), stop = running = new AbortController();
  const made = {text: "", model: $("model").value, system: chosen.system ?? "", note: CUT};
  turn.at = turn.answers.push(made) - 1;
  log.ariaLive = "polite"; // from now on, not while an earlier chat is opened
  save(of);
  busy(item, true);
  drawAnswer(turn);
  scroll.scrollTop = scroll.scrollHeight;
  try {
    await stream(of, turn, made, chosen, stop.signal);
  } catch (error) {
    if (error.name === "AbortError") made.note = "Stopped.";
    else if (error instanceof Refused) made.note = error.message;
    else if (!(error instanceof TypeError)) throw error; // which a broken connection is
  } finally {
    if (running === stop) running = null;
    busy(item, false);
    drawAnswer(turn);
    save(of);
    say(made.note ?? "The answer is complete.");
  }
}

async function stream(of, turn, made, chosen, signal) {
  if (!made.model) made.model = await loadModels();
  const body = {model: made.model, messages: messagesBefore(of, turn, made.system), stream: true};
  body.stream_options = {include_usage: true};
  for (const name of NUMBERS) if (Number.isFinite(chosen[name])) body[name] = chosen[name];
  const response = await ask("/v1/chat/completions", body, signal);
  const seconds = () => (performance.now() - response.began) / 1e3;
  made.id = response.headers.get("x-request-id");
  for await (const said of answers(response.body)) {
    if (said.text) {
      made.text += said.text;
      made.first ??= seconds();
      made.last = seconds();
      later(turn);
    } else if (said.error) made.note = said.error;
    else if (said.usage) Object.assign(made, {read: said.usage.prompt_tokens, wrote: said.usage.completion_tokens});
    else if (said.finish) made.finish = said.finish;
    else if (said.done && made.note === CUT) {
      made.note = ENDS[made.finish] ?? (made.text ? undefined : "The answer is empty.");
    }
  }
}

// Showing

function place(turn) {
  turn.item = make("li", {className: "answer"}, make("span", {className: "hidden", textContent: "Answer:"}),
                   make("div", {className: "text", dir: "auto"}), make("div", {className: "below", ariaLive: "off"}));
  Object.defineProperty(turn, "item", {enumerable: false}); // not kept
  const said = make("div", {className: "text", dir: "auto", textContent: turn.question});
  const tools = [tool("Edit", () => edit(turn, asked)), tool("Copy", copier(() => turn.question))];
  const asked = make("li", {className: "question"}, make("span", {className: "hidden", textContent: "Question:"}), said,
                     make("div", {className: "tools"}, ...tools));
  log.append(asked, turn.item);
  $("welcome").hidden = true;
  return turn.item;
}

function later(turn) {
  turn.item.waiting ??= requestAnimationFrame(() => drawAnswer(turn));
}

function drawAnswer(turn) {
  const {item} = turn, made = shown(turn), [, text, below] = item.children, ended = !item.classList.contains("busy");
  const low = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
  const focused = below.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  cancelAnimationFrame(item.waiting);
  item.waiting = undefined;
  show(text, made.text);
  below.replaceChildren();
  if (ended && made.note) below.append(make("p", {className: "note", textContent: made.note}));
  if (ended) below.append(make("div", {className: "tools"}, ...tools(turn, made)));
  if (low) scroll.scrollTop = scroll.scrollHeight;
  if (focused === null) return;
  ([...below.querySelectorAll("button:enabled")].find(each => nameOf(each) === focused) ?? question).focus();
}

function tools(turn, made) {
  const many = turn.answers.length, only = (condition, ...rest) => (condition ? tool(...rest) : null);
  const go = step => () => {
    turn.at = (turn.at + step + many) % many;
    drawAnswer(turn);
    save(chat);
  };
  const usable = each => each.text && each.id && each.finish && each.finish !== "content_filter";
  const rivals = turn.answers.filter(each => each !== made && usable(each) && each.vote === undefined &&
                                             each.text !== made.text && each.system === made.system);
  const voted = (rating, words, sign) => ({ariaLabel: words, title: words, className: `thumb ${sign}`,
                                           ariaPressed: String(made.vote === rating), disabled: made.vote !== undefined});
  return [
    only(many > 1, "‹", go(-1), {ariaLabel: "Earlier answer"}),
    many > 1 ? make("span", {className: "small", textContent: `${turn.at + 1} of ${many}`}) : null,
    only(many > 1, "›", go(1), {ariaLabel: "Later answer"}),
    only(made.text, "Copy", copier(() => made.text)),
    tool(made.text ? "Regenerate" : "Try again", () => running || answer(turn), {className: "last"}),
    only(usable(made), "", () => vote(turn, [[made, 1, null]]), voted(1, "Good answer", "up")),
    only(usable(made), "", () => improve(turn, made), voted(-1, "Bad answer", "down")),
    only(usable(made) && rivals.length, "Best of these", () => vote(turn, rivals.map(each => [each, -1, made.text]))),
    make("span", {className: "small figures", textContent: figures(made)}),
  ];
}

function figures({read, wrote, first, last, model}) {
  const speed = wrote > 1 && last - first > 0.05 ? (wrote - 1) / (last - first) : null; // unknown for a single burst
  const digits = {maximumSignificantDigits: 2};
  return [
    wrote !== undefined && `${read} prompt + ${wrote} answer tokens`,
    first !== undefined && `first after ${first.toLocaleString("en", digits)} s`,
    speed && `${Math.round(speed)} tokens/s`,
    $("model").options.length > 1 && model,
  ].filter(Boolean).join(" · ");
}

const nameOf = element => element.ariaLabel ?? element.textContent;
const tool = (textContent, onclick, more = {}) => make("button", {type: "button", textContent, onclick, ...more});
const copier = text => event => copy(text(), event.currentTarget);

function busy(item, is) {
  item.classList.toggle("busy", is);
  item.ariaBusy = String(is);
  $("stop").hidden = !is;
  $("send").hidden = is;
  if (is) say("Answering…");
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // over http a page has no clipboard
    const field = make("textarea", {value: text, className: "hidden"});
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    button.focus();
  }
  const before = button.before ??= button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

// Forms within the conversation

/** A form with a text, for `done`, which gets null if it is cancelled. */
function field(words, value, button, done) {
  const area = make("textarea", {value, rows: Math.min(8, value.split("\n").length + 2), required: true, dir: "auto"});
  const buttons = [tool("Cancel", () => done(null)), make("button", {type: "submit", textContent: button})];
  const form = make("form", {className: "better"}, make("label", {}, words, area),
                    make("div", {className: "row end"}, ...buttons));
  form.onsubmit = event => {
    event.preventDefault();
    done(area.value);
  };
  form.onkeydown = event => event.key === "Escape" && done(null);
  setTimeout(() => area.focus());
  return form;
}

/** Ask an earlier question in other words. What followed it stays in the history as a chat of its own. */
function edit(turn, asked) {
  if (running) return;
  const before = [...asked.children];
  asked.replaceChildren(field("Your question", turn.question, "Ask", words => {
    asked.replaceChildren(...before);
    if (words === null) return question.focus();
    const number = chat.turns.indexOf(turn);
    const turns = chat.turns.slice(0, number);
    open(number < chat.turns.length - 1 ? begun(turns) : {...chat, turns});
    send(words);
  }));
}

function improve(turn, made) {
  const below = turn.item.lastChild;
  if (below.querySelector("form")) return;
  below.append(field("What should it have said? Edit the answer, or send it as it is.", made.text, "Send", words => {
    drawAnswer(turn);
    if (words === null) return;
    const better = words.trim() && words !== made.text ? words : null;
    vote(turn, [[made, -1, better]]);
  }));
}

/** Send votes, each an answer, its rating and perhaps a better answer. */
async function vote(turn, votes) {
  const of = chat;
  let problem = null;
  for (const [each, rating, better] of votes) {
    const messages = messagesBefore(of, turn, each.system);
    each.vote = rating;
    drawAnswer(turn);
    try {
      await ask("/feedback", {request_id: each.id, model: each.model, messages, answer: each.text, rating, better});
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      delete each.vote;
      problem = error.message;
    }
  }
  drawAnswer(turn);
  if (problem) turn.item.lastChild.append(make("p", {className: "note", role: "alert", textContent: problem}));
  else say("Thank you for the vote.");
  save(of);
}

// Chats

function save(of) {
  if (of.turns.length && !of.gone) keep(of);
  drawHistory();
}

function open(other) {
  running?.abort();
  chat = other;
  log.ariaLive = "off";
  log.replaceChildren();
  $("welcome").hidden = false;
  for (const turn of chat.turns) {
    place(turn);
    drawAnswer(turn);
  }
  menu(false);
  drawHistory();
  scroll.scrollTop = scroll.scrollHeight;
  question.focus();
}

function drawHistory() {
  $("history").replaceChildren(...chats().map(each => {
    const title = tool(each.title, () => open(each), {ariaCurrent: each.id === chat.id ? "true" : null});
    const gone = ({currentTarget}) => sure(currentTarget, () => remove(each));
    return make("li", {}, title, tool("×", gone, {className: "remove", ariaLabel: `Delete ${each.title}`}));
  }));
}

function remove(each) {
  forget(each);
  if (!each || each.id === chat.id) {
    chat.gone = true;
    open(begun([]));
  } else drawHistory();
}

/** Do it at the second click. */
function sure(button, action) {
  if (button.dataset.sure) return action();
  const before = button.textContent;
  button.dataset.sure = button.textContent = "Delete?";
  setTimeout(() => { button.textContent = before; delete button.dataset.sure; }, 3000);
}

function send(words) {
  if (!words.trim() || running) return;
  const turn = {question: words, answers: [], at: 0};
  chat.title ||= words.trim().replace(/\s+/g, " ").slice(0, 60);
  chat.turns.push(turn);
  answer(turn);
}

function menu(isOpen) {
  $("chats").classList.toggle("open", isOpen);
  $("menu").ariaExpanded = String(isOpen);
}

function grow() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

async function loadModels() {
  const select = $("model");
  try {
    const {data} = await (await ask("/v1/models")).json();
    select.replaceChildren(...data.map(({id}) => make("option", {value: id, textContent: id})));
    if (data.some(({id}) => id === settings().model)) select.value = settings().model;
    $("served").textContent = data.length ? "" : "This server has no model.";
    return select.value;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    $("served").textContent = error.message;
  }
}

$("ask").addEventListener("submit", event => {
  event.preventDefault();
  const words = question.value;
  if (!words.trim() || running) return;
  question.value = "";
  grow();
  send(words);
});
question.addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
question.addEventListener("input", grow);
document.addEventListener("keydown", event => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if ($("chats").classList.contains("open")) menu(false), $("menu").focus();
  else running?.abort();
});
log.addEventListener("click", ({target}) => {
  if (target.matches(".copy-code")) copy(target.nextSibling.textContent, target);
});
$("stop").addEventListener("click", () => { running?.abort(); question.focus(); });
$("new").addEventListener("click", () => open(begun([])));
$("clear").addEventListener("click", ({currentTarget}) => sure(currentTarget, () => remove(null)));
$("menu").addEventListener("click", () => menu(!$("chats").classList.contains("open")));
$("examples").addEventListener("click", ({target}) => target.matches("button") && send(target.textContent));
$("model").addEventListener("change", () => change({model: $("model").value}));
$("key-button").addEventListener("click", () => enterKey(""));
$("settings-button").addEventListener("click", () => {
  for (const input of $("settings").querySelectorAll("[name]")) input.value = settings()[input.name] ?? "";
  $("settings").showModal();
});
$("settings").addEventListener("submit", () => {
  const inputs = [...$("settings").querySelectorAll("[name]")];
  change(Object.fromEntries(inputs.map(input => [input.name, input.valueAsNumber ?? input.value])));
});
addEventListener("storage", drawHistory);
addEventListener("pagehide", () => save(chat));
drawHistory();
loadModels();
