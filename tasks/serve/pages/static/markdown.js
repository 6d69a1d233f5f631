// Markdown of a model, shown safely: only the elements made here exist, all text is text, nothing is loaded, and links
// lead to http, https and mailto only. Each step is linear in the text, whose marked-up part and depth are bounded.

const MOST = 200_000; // characters that are marked up; the rest is plain text
const WIDEST = 10_000; // characters of a block that are searched for marks
const DEEPEST = 6; // lists and quotes within each other
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,30})[^`]*$/, HEADING = /^ {0,3}(#{1,6})\s+(.*?)[\s#]*$/;
const STEERING = /[\u202a-\u202e\u2066-\u2069\0]/g; // characters that reorder the text around them, and NUL
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/, ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])\s+(?=\S)/, QUOTE = /^ {0,3}> ?/;
const ROW = /^ {0,3}\|.*\|\s*$/, DASHES = /^[ |:-]*-[ |:-]*$/;
const MARKS = new RegExp(
  [
    "(`{1,3})(?!`)(.{1,1000}?)(?<!`)\\1(?!`)", // 1, 2: code
    "\\*\\*(?=\\S)(.{1,1000}?\\S|\\S)\\*\\*(?!\\*)", // 3: bold
    "\\*(?=[^\\s*])([^*]{0,1000}?[^\\s*])\\*", // 4: italics
    "(?<![\\p{L}\\p{N}_])_(?=[^\\s_])([^_]{0,1000}?[^\\s_])_(?![\\p{L}\\p{N}_])", // 5: italics
    "!?\\[([^\\][]{1,500})\\]\\(([^\\s()]{1,2000})(?:\\s+\"[^\"]{0,200}\")?\\)", // 6, 7: a link, or an image, as one
    "\\bhttps?:\\/\\/[^\\s<>\"'`()[\\]]{1,2000}[^\\s<>\"'`()[\\].,;:!?]", // a bare link
    "\\\\([!-/:-@[-`{-~])", // 8: an escaped sign
  ].join("|"),
  "gsu",
);

/** An element with these properties and children; null is no child. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

/** Show `text` in `place`, where only the blocks that have changed since the last call are made again. */
export function show(place, text) {
  const safe = text.replace(STEERING, "\ufffd"), blocks = split(safe.slice(0, MOST));
  if (safe.length > MOST) blocks.push({kind: "plain", lines: [safe.slice(MOST)]});
  blocks.forEach((block, number) => {
    const source = `${block.kind}\n${block.lines.join("\n")}`, before = place.childNodes[number];
    if (before?.source === source) return;
    const made = Object.assign(element(block, 0), {source});
    before ? before.replaceWith(made) : place.append(made);
  });
  while (place.childNodes.length > blocks.length) place.lastChild.remove();
}

/** The blocks of a text: {kind, lines, …}. */
function split(text) {
  const blocks = [];
  let open = null, fence = null;
  const begin = (kind, line, more) => blocks.push(open = {kind, lines: line === undefined ? [] : [line], ...more});
  for (const line of text.split(/\r\n|\n|\r/)) {
    let found;
    if (fence) {
      if (line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "")) fence = open = null;
      else open.lines.push(line);
    } else if (!line.trim()) {
      if (open?.kind === "list") open.lines.push("");
      else open = null;
    } else if (open?.kind === "list" && (/^(?: {2}|\t)/.test(line) || (ITEM.test(line) && !RULE.test(line)))) {
      open.lines.push(line.replace(/^\t/, "    "));
    } else if ((found = FENCE.exec(line))) {
      fence = found[1];
      begin("code", undefined, {language: found[2]});
    } else if ((found = HEADING.exec(line))) {
      begin("heading", found[2], {level: found[1].length});
      open = null;
    } else if (RULE.test(line)) {
      begin("rule", line);
      open = null;
    } else if (ITEM.test(line)) begin("list", line);
    else if (QUOTE.test(line)) {
      if (open?.kind === "quote") open.lines.push(line.replace(QUOTE, ""));
      else begin("quote", line.replace(QUOTE, ""));
    } else if (ROW.test(line)) {
      if (open?.kind === "table") open.lines.push(line);
      else begin("table", line);
    } else if (open?.kind === "paragraph" || (open?.kind === "list" && open.lines.at(-1))) open.lines.push(line);
    else begin("paragraph", line);
  }
  return blocks;
}

function element(block, depth) {
  const text = block.lines.join("\n");
  switch (block.kind) {
    case "code":
      return make("div", {className: "code"}, make("span", {textContent: block.language}),
                  make("button", {type: "button", className: "copy-code", textContent: "Copy code"}),
                  make("pre", {tabIndex: 0}, make("code", {textContent: text})));
    case "heading":
      return make(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(text));
    case "rule":
      return make("hr");
    case "list":
      return depth < DEEPEST ? list(block.lines, depth) : plain(text);
    case "quote":
      return depth < DEEPEST ? make("blockquote", {}, ...within(text, depth)) : plain(text);
    case "table":
      return DASHES.test(block.lines[1] ?? "") ? table(block.lines) : make("p", {}, ...inline(text));
    case "plain":
      return plain(text);
    default:
      return make("p", {}, ...inline(text));
  }
}

const plain = text => make("p", {className: "plain", textContent: text});
const within = (text, depth) => split(text).map(block => element(block, depth + 1));

function list(lines, depth) {
  const [, margin, mark] = ITEM.exec(lines[0]), items = [];
  let indent;
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= margin.length + 1) {
      items.push([line.slice(found[0].length)]);
      indent = new RegExp(`^ {1,${Math.min(found[0].length, 16)}}`);
    } else items.at(-1).push(line.replace(indent, ""));
  }
  const ordered = /\d/.test(mark);
  const made = items.map(item => {
    const blocks = within(item.join("\n"), depth), [first] = blocks;
    return make("li", {}, ...(first?.tagName === "P" && first.className !== "plain" ? first.childNodes : [first]),
                ...blocks.slice(1));
  });
  return make(ordered ? "ol" : "ul", ordered ? {start: parseInt(mark, 10)} : {}, ...made);
}

function table(lines) {
  const cells = line => line.trim().slice(1, -1).split(/(?<!\\)\|/).slice(0, 50);
  const side = cells(lines[1]).map(cell => (/-:\s*$/.test(cell) ? (/^\s*:/.test(cell) ? "center" : "right") : ""));
  const row = (line, tag) => make("tr", {}, ...cells(line).map(
    (cell, number) => make(tag, {className: side[number] ?? ""}, ...inline(cell.trim().replaceAll("\\|", "|")))));
  const body = make("tbody", {}, ...lines.slice(2).map(line => row(line, "td")));
  return make("div", {className: "wide", tabIndex: 0}, make("table", {}, make("thead", {}, row(lines[0], "th")), body));
}

/** The nodes of a text within a block. */
function inline(text, depth = 0) {
  if (text.length > WIDEST || depth > 3) return [text];
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(MARKS)) {
    const [whole, , code, bold, star, line, label, target, sign] = found;
    nodes.push(text.slice(end, found.index));
    end = found.index + whole.length;
    if (code !== undefined) nodes.push(make("code", {textContent: code}));
    else if (bold !== undefined) nodes.push(make("strong", {}, ...inline(bold, depth + 1)));
    else if (star ?? line) nodes.push(make("em", {}, ...inline(star ?? line, depth + 1)));
    else if (label !== undefined) nodes.push(link(target, whole, label));
    else nodes.push(sign ?? link(whole, whole, whole));
  }
  return [...nodes, text.slice(end)].filter(node => node !== "");
}

/** A link that a person may follow, or the text as it was written where its target is of another kind. */
function link(target, written, label) {
  let address;
  try {
    address = new URL(target);
  } catch {
    return written;
  }
  if (!["http:", "https:", "mailto:"].includes(address.protocol)) return written;
  return make("a", {href: address.href, rel: "noopener noreferrer", target: "_blank", title: address.href}, label);
}
