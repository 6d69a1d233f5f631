// The status page: whatever /status.json has, as tables, asked for again every few seconds.

import {Refused, ask} from "./api.js";
import {make} from "./markdown.js";

const SECONDS = 3, DEEPEST = 3, UNITS = [["d", 86_400], ["h", 3_600], ["min", 60]];
const tables = document.getElementById("tables"), when = document.getElementById("when");
const isObject = value => value !== null && typeof value === "object" && !Array.isArray(value);
const isTable = value => Array.isArray(value) && value.length > 0 && value.every(isObject);

/** A key as words, without the unit that is shown beside the number. */
const named = key => key.replace(/_(seconds|bytes|usd)$/, "").replaceAll("_", " ");

function written(key, value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean" || key === "ready") {
    const mark = value ? "yes" : "no";
    return make("span", {className: key === "ready" ? mark : "", textContent: mark});
  }
  if (typeof value !== "number") return typeof value === "string" ? value : JSON.stringify(value);
  const number = (scaled, digits = 3) =>
    scaled.toLocaleString("en", Number.isInteger(scaled) ? {} : {maximumSignificantDigits: digits});
  if (key.endsWith("_bytes")) return `${number(value / 1e6)} MB`;
  if (key.endsWith("_usd")) return `$${value.toLocaleString("en", {maximumFractionDigits: 4})}`;
  if (!/seconds$|^p\d+$/.test(key)) return number(value);
  const unit = UNITS.find(([, seconds]) => value >= 2 * seconds);
  if (unit) return `${number(value / unit[1], 2)} ${unit[0]}`;
  return value < 1 ? `${number(value * 1e3)} ms` : `${number(value)} s`;
}

/** The sections of a mapping: first its plain values, then what is within it. */
function* sections(title, values, depth = 0) {
  const within = ([, value]) => (isObject(value) || isTable(value)) && depth < DEEPEST;
  const all = Object.entries(values), plain = all.filter(entry => !within(entry));
  if (plain.length) {
    const head = key => make("th", {scope: "row", textContent: named(key)});
    const rows = plain.map(([key, value]) => make("tr", {}, head(key), make("td", {}, written(key, value))));
    yield section(title, make("table", {className: "pairs"}, make("tbody", {}, ...rows)));
  }
  for (const [key, value] of all.filter(within)) {
    const below = title ? `${title}: ${named(key)}` : named(key);
    if (isObject(value)) yield* same(below, value) ?? sections(below, value, depth + 1);
    else yield grid(below, value);
  }
}

/** A mapping of mappings, such as a latency's percentiles by kind, as one table; undefined for any other. */
function same(title, values) {
  const rows = Object.entries(values);
  const flat = ([, row]) => isObject(row) && Object.values(row).every(cell => !isObject(cell));
  if (rows.length && rows.every(flat)) return [grid(title, rows.map(([key, row]) => ({"": named(key), ...row})))];
}

function grid(title, rows) {
  const keys = [...new Set(rows.flatMap(Object.keys))];
  const head = make("tr", {}, ...keys.map(key => make("th", {scope: "col", textContent: named(key)})));
  const body = rows.map(row => make("tr", {}, ...keys.map(key => make("td", {}, written(key, row[key])))));
  return section(title, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

const section = (title, table) => make("section", {}, title ? make("h2", {textContent: title}) : null, table);

async function draw() {
  try {
    const values = await (await ask("/status.json")).json();
    tables.replaceChildren(...sections("", isObject(values) ? values : {status: values}));
    when.textContent = `Now: ${new Date().toLocaleTimeString()}`;
    when.className = "small";
  } catch (error) {
    if (!(error instanceof Refused || error instanceof SyntaxError)) throw error;
    when.textContent = error instanceof Refused ? error.message : "The server's status isn't JSON.";
    when.className = "note";
  } finally {
    setTimeout(draw, SECONDS * 1e3);
  }
}

draw();
