"""The text of an article in MediaWiki's markup. Runs in the process of `tasks/text/process.py`.

Kept are sentences, headings, lists, formulas as TeX, code, and by choice tables. Templates are shown as templates.py
says. References, files, categories, links to other languages, comments, and headings with nothing below are left out.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from storage.errors import BadDocument
from tasks.text.dumps.templates import Call, lowered, raised, shown

COMMENT = re.compile(r"(?:(?<=\n)[ \t]*<!--(?:(?!-->).)*-->[ \t]*\n)|<!--.*?(?:-->|\Z)", re.DOTALL)
SWITCH = re.compile(r"__[A-Z]+__|__[A-ZÄÖÜ]+_[A-ZÄÖÜ]+__")
OTHER_WIKI = re.compile(r"^(?:[a-z]{2,3}(?:-[a-z-]+)?|simple|wikt|wiktionary|commons|species|meta|mw|w|b|q|s|n|v|d|c):")
FILES, CATEGORIES = ("file", "image", "media"), ("category",)
PLAIN_CALLS = ("formatnum", "lc", "uc", "lcfirst", "ucfirst", "nowrap", "text", "#formatdate", "anchorencode", "plural")
CASES: dict[str, Callable[[str], str]] = {"lc": str.lower, "uc": str.upper}
LEFT_OUT = {
    "ref", "references", "gallery", "timeline", "score", "imagemap", "graph", "templatestyles", "hiero", "mapframe",
    "maplink", "categorytree", "inputbox", "section", "style", "script", "indicator", "noinclude", "includeonly", "img",
    "languages", "dynamicpagelist", "phonos", "hr", "ref/",
}  # fmt: skip
RAW = ("nowiki", "pre", "code", "syntaxhighlight", "source", "tt", "kbd", "samp", "var")
TEX = ("math", "chem", "ce")
BLOCKS = ("p", "div", "blockquote", "poem", "center", "ul", "ol", "dl", "table", "section")
ITEMS = {"*": "\ue001", "#": "\ue002", ":": "\ue003", ";": "\ue004"}  # at the beginning of a line, for the time being
MARKS = re.compile(r"^[\ue001-\ue004]+ ?")
STRAY = re.compile(
    r"</?(?:ref|references|span|div|small|big|br|center|font|sup|sub|nowiki|blockquote|includeonly|noinclude|onlyinclude"
    r"|gallery|table|tr|td|th|u|s|b|i|p|poem|abbr|cite|code|math|section)\b[^<>]*/?>",
    re.IGNORECASE,
)
INDENTED_TABLE = re.compile(r"^[*#:;]+[ \t]*(?=\{\|)", re.MULTILINE)
LEFT_TABLE = re.compile(r"^[ \t:]*\{\|.*?^[ \t]*\|\}", re.DOTALL | re.MULTILINE)
LEFT_ROW = re.compile(r"^[ \t:]*(?:\{\||\|[-}+|]|[|!]).*$", re.MULTILINE)
WRITTEN_TWICE = ("zh", "gan", "wuu", "sr", "sh", "kk", "ku", "uz", "iu", "crh", "shi", "tg", "tly", "ban", "mni")
VARIANTS = re.compile(r"-\{(?:([A-Z+-]|[a-z;\s-]*)\s*\|)?((?:(?!-\{|\}-).)*)\}-", re.DOTALL)
HIDDEN_RULES = ("H", "T", "N", "D", "-")  # for the rest of the page, or its title
CODE = r"[a-z]{2,4}(?:-[a-z]+)?\s*:"
RULE = re.compile(rf"\s*(?:[^;:=]*=>\s*)?{CODE}(.*?)(?:;\s*(?:[^;:=]*=>|{CODE}|\Z)|\Z)", re.DOTALL)
BETWEEN_ROWS = re.compile(r"^[ \t]*\|-+[ \t]*$", re.MULTILINE)  # of tables that templates begin and end
EMPHASIS = re.compile(
    r"<(nowiki|pre|syntaxhighlight|source|math)\b[^<>]*(?<!/)>.*?</\1\s*>|'{2,}|\n", re.DOTALL | re.IGNORECASE
)
HIDDEN = re.compile(r"display\s*:\s*none", re.IGNORECASE)
EMPTY = re.compile(r"\(\s*(?:[,;:]\s*)*\)|\[\s*\]|（\s*）")
DEEPEST = 60  # templates, tags and links within each other. The parser knows 40
HEADING, LESS, GREATER, RAW_TEXT, RAW_END = "\ue005\ue006\ue007\ue008\ue009"


def reader(tables: str) -> Callable[..., dict[str, Any]]:
    """The function from an article's text, title, language, address, licence and names of namespaces to its fields:
    `text` and `lost`, the names of templates without text with their numbers. `tables` is keep or drop."""
    import mwparserfromhell

    mwparserfromhell.parse("{{it|loads}} [[what]] '''it''' <ref>needs</ref>")

    def read(text: str, title: str, language: str, _: str, __: str, hidden: tuple[str, ...]) -> dict[str, Any]:
        return read_article(text, title, language, hidden, tables == "keep")

    return read


def read_article(text: str, title: str, language: str, hidden: Iterable[str], tables: bool) -> dict[str, Any]:
    """`text`, empty if the article has none, and `lost`. Raises BadDocument for markup nested too deep."""
    import mwparserfromhell

    article = _Article(title, language, hidden, tables)
    text = COMMENT.sub("", text)
    if language.partition("-")[0] in WRITTEN_TWICE:
        text = _of_one_variant(text)
    code = mwparserfromhell.parse(_without_emphasis(INDENTED_TABLE.sub("", text)), skip_style_tags=True)
    return {"text": article.with_literals(_tidy(article.text(code), tables)), "lost": article.lost}


def _of_one_variant(text: str) -> str:
    """Text whose wiki converts between scripts or countries, with the first form of each `-{zh-hans:…; zh-hant:…}-`."""
    for _ in range(DEEPEST):
        text, times = VARIANTS.subn(_variant, text)
        if not times:
            break
    return text


def _variant(found: re.Match[str]) -> str:
    flag, body = (found.group(1) or "").strip(), found.group(2)
    if flag in HIDDEN_RULES:
        return ""
    return rule.group(1).strip() if flag != "R" and (rule := RULE.match(body)) else body


class _Article:
    """The text of an article's markup, as it is collected."""

    def __init__(self, title: str, language: str, hidden: Iterable[str], tables: bool) -> None:
        self._title, self._language, self._tables = title, language.partition("-")[0], tables
        self._hidden = {*FILES, *CATEGORIES, *(name.lower() for name in hidden)}
        self.lost: Counter[str] = Counter()
        self._depth = 0
        self._literals: list[str] = []

    def text(self, code: Any) -> str:
        """The text of parsed markup, with marks for items and headings."""
        if code is None:
            return ""
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadDocument("nested_too_deep")
        try:
            return "".join(map(self._node, code.nodes))
        finally:
            self._depth -= 1

    def with_literals(self, text: str) -> str:
        """Text with the code and formulas in their places, which nothing changed."""
        text = re.sub(f"{RAW_TEXT}(\\d+){RAW_END}", lambda found: self._literals[int(found.group(1))], text)
        return text.replace(LESS, "<").replace(GREATER, ">")

    def _literal(self, text: str) -> str:
        self._literals.append(text)
        return f"{RAW_TEXT}{len(self._literals) - 1}{RAW_END}"

    def _node(self, node: Any) -> str:
        kind = type(node).__name__
        if kind == "Text":
            return str(node.value)
        if kind == "Wikilink":
            return self._link(node)
        if kind == "Template":
            return self._template(node)
        if kind == "Tag":
            return self._tag(node)
        if kind == "ExternalLink":
            return self.text(node.title) if node.title is not None else "" if node.brackets else str(node.url)
        if kind == "Heading":
            return f"\n{HEADING}{'#' * node.level} {self.text(node.title).strip()}\n"
        if kind == "HTMLEntity":
            return _entity(node)
        return self.text(node.default) if kind == "Argument" else ""

    def _link(self, node: Any) -> str:
        target = str(node.title).strip()
        space = target.partition(":")[0].strip().lower().replace("_", " ")
        if not target.startswith(":") and ":" in target and (space in self._hidden or OTHER_WIKI.match(target)):
            if node.text is not None and OTHER_WIKI.match(target) and space not in self._hidden:
                return self.text(node.text)  # a word that is explained elsewhere
            return ""
        if node.text is not None:
            words = self.text(node.text)
            return words if words.strip() else target.lstrip(":").partition("#")[0]
        return self.text(node.title).strip().lstrip(":")

    def _template(self, node: Any) -> str:
        name = " ".join(COMMENT.sub("", str(node.name)).replace("_", " ").split())
        call, sign, argument = name.partition(":")
        if sign and call.lower() in PLAIN_CALLS:
            return CASES.get(call.lower(), str)(argument)
        if name.startswith("#") and sign:
            self.lost[call.lower()] += 1
            return ""
        if name == "PAGENAME" or name == "FULLPAGENAME":
            return self._title
        name = name.lower().removeprefix("template:").removeprefix("vorlage:")
        values: dict[int, str] = {}
        named: dict[str, str] = {}
        for parameter in node.params:
            key, value = str(parameter.name).strip(), self.text(parameter.value)
            if key.isdecimal() and len(key) < 4:
                values[int(key)] = value
            else:
                named[key.lower()] = value.strip()
        ordered = [values.get(number, "") for number in range(1, max(values, default=0) + 1)]
        found = shown(Call(name, ordered, named, self._language))
        if found is None:
            self.lost[name[:80]] += 1
            return ""
        return found

    def _tag(self, node: Any) -> str:
        tag = str(node.tag).strip().lower()
        if node.wiki_markup in ITEMS:
            return ITEMS[node.wiki_markup]
        if tag in LEFT_OUT or _is_hidden(node):
            return ""
        if tag in TEX:
            tex = " ".join(str(node.contents or "").split())
            tex = f"\\ce{{{tex}}}" if tag in ("chem", "ce") else tex
            if not tex:
                return ""
            block = any("block" in str(one) for one in node.attributes)
            return f"\n{self._literal(f'$${tex}$$')}\n" if block else self._literal(f"${tex}$")
        if tag in RAW:
            raw = str(node.contents or "")
            block = tag == "pre" or "\n" in raw.strip()
            return f"\n{self._literal(raw.strip(chr(10)))}\n" if block else self._literal(html.unescape(raw))
        if tag == "br":
            return "\n"
        if tag in ("sup", "sub"):
            return (raised if tag == "sup" else lowered)(self.text(node.contents))
        if tag == "table":
            return self._table(node) if self._tables else "\n"
        if tag == "li" and not node.wiki_markup:
            return f"\n{ITEMS['*']} {self.text(node.contents).strip()}\n"
        found = self.text(node.contents)
        return f"\n{found}\n" if tag in BLOCKS else found

    def _table(self, node: Any) -> str:
        """A line for each row, with bars between its cells. A caption comes before."""
        lines = []
        for row in [node, *_inside(node, "tr")]:
            cells = [" ".join(_plain(self.text(cell.contents)).split()) for cell in _inside(row, "td", "th")]
            if row is node and cells and cells[0].startswith("+"):
                lines.append(cells.pop(0)[1:].strip())
            if any(cells):
                lines.append(" | ".join(cells))
        return "\n\n" + "\n".join(lines) + "\n\n"


def _inside(node: Any, *tags: str) -> list[Any]:
    """The tags of these names right within a tag."""
    if node.contents is None:
        return []
    return [one for one in node.contents.nodes if type(one).__name__ == "Tag" and str(one.tag).strip().lower() in tags]


def _is_hidden(node: Any) -> bool:
    return any(HIDDEN.search(str(one.value)) or "noprint" in str(one.value) for one in node.attributes)


def _entity(node: Any) -> str:
    try:
        found = str(node.normalize())
    except (ValueError, OverflowError):
        return ""
    if found in ("<", ">"):
        return LESS if found == "<" else GREATER
    return " " if found in "\xa0\u2009\u202f" else "" if found in "\0\u200b\u200e\u200f\u00ad" else found


def _without_emphasis(text: str) -> str:
    """The text without marks of bold and italic. MediaWiki ends them with their line, and so knows which of three
    quotation marks are an apostrophe and italics, as in `''Hamlet'''s` (`Parser::doQuotes`)."""
    shown: list[str] = []
    at, marks = 0, list[re.Match[str]]()
    for found in (*EMPHASIS.finditer(text), None):
        if found and found[0].startswith("'"):
            marks.append(found)
        elif not found or found[0] == "\n":
            for mark, apostrophes in zip(marks, _apostrophes(text, marks), strict=True):
                shown += text[at : mark.start()], "'" * apostrophes
                at = mark.end()
            marks = []
    return "".join([*shown, text[at:]])


def _apostrophes(text: str, marks: Sequence[re.Match[str]]) -> list[int]:
    """How many apostrophes are in each of the runs of quotation marks of a line."""
    sizes = [len(mark[0]) for mark in marks]
    found = [1 if size == 4 else max(0, size - 5) for size in sizes]
    bold, italic = sum(size > 2 for size in sizes), sum(size == 2 or size > 4 for size in sizes)
    if bold % 2 and italic % 2:
        before = {
            at: text[max(0, mark.start() - 2) : mark.start()] for at, mark in enumerate(marks) if len(mark[0]) == 3
        }
        letter = [at for at, words in before.items() if words[:1] == " " and words[-1:] != " "]
        word = [at for at, words in before.items() if " " not in words]
        if first := (*letter[:1], *word[:1], *before)[:1]:
            found[first[0]] += 1
    return found


def _plain(text: str) -> str:
    """Text without the marks for items and headings."""
    return re.sub("[\ue001-\ue005]+ ?", " ", text)


def _tidy(text: str, tables: bool) -> str:
    """The text with the marks turned into what they stand for, without what the parser left of broken markup."""
    if not tables:
        text = LEFT_TABLE.sub("", text)
        text = LEFT_ROW.sub("", text) if "{|" in text else text
    text = BETWEEN_ROWS.sub("", text)
    text = SWITCH.sub("", STRAY.sub("", text)).replace("\xa0", " ")
    text = text.replace("[[", "").replace("]]", "")
    counts: list[int] = []
    lines: list[str] = []
    given = text.split("\n")
    for number, line in enumerate(given):
        found = MARKS.match(line)
        if not found:
            counts = []
            beside = [*given[max(0, number - 1) : number], *given[number + 1 : number + 2]]
            raw = line.startswith(" ") and any(one.startswith(" ") for one in beside)  # lines of code begin with blanks
            lines.append(line.rstrip() if raw else _without_gaps(line))
            continue
        signs, rest = found.group().strip(), _without_gaps(line[found.end() :]).strip()
        if not rest.strip(".,;:"):
            continue
        depth, sign = len(signs), signs[-1]
        counts = [*counts[:depth], *[0] * (depth - len(counts))]
        counts[-1] += sign == ITEMS["#"]
        mark = {"*": "- ", "#": f"{counts[-1]}. "}.get({value: key for key, value in ITEMS.items()}[sign], "")
        lines.append(f"{'  ' * (depth - 1) if mark else ''}{mark}{rest}")
    return _sections(lines)


def _without_gaps(line: str) -> str:
    """A line without the gaps that left-out parts leave: empty brackets, two blanks, a blank before a comma."""
    line = re.sub("\\s*[\ue001-\ue004]+\\s*", ": ", line)  # of `; term : definition`
    line = EMPTY.sub("", line)
    line = re.sub(r"\(\s*[,;:]\s*", "(", line)
    line = re.sub(r"[,;]\s*(?=[,;.)])", "", line)
    line = re.sub(r"\s*[,;]\s*\)", ")", line)
    line = re.sub(r"[ \t]{2,}", " ", line)
    return re.sub(r"(?<=\w) (?=[,.;](?:\s|$))", "", line).strip()


def _sections(lines: list[str]) -> str:
    """Lines without headings that nothing follows before the next of their level, and single blank lines between."""
    kept: list[str] = []
    below = False  # whether something follows
    level = 0  # of the section that has text, within the one that is looked at
    for line in reversed(lines):
        if line.startswith(HEADING):
            depth = len(line) - len(line[1:].lstrip("#")) - 1
            if below or (level and level > depth):
                kept += ["", line[1:], ""]
                level = depth
            below = False
        else:
            below = below or bool(line.strip())
            kept.append(line)
    text = "\n".join(reversed(kept))
    return re.sub(r"\n{3,}", "\n\n", text).strip()
