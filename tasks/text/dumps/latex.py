"""The text of a paper in LaTeX. Runs in the process of `tasks/text/process.py`.

Kept are sentences, headings, lists, captions, notes, and formulas as they are written, with the paper's own macros in
place. Comments, the preamble, pictures, tables, references to numbers, and the bibliography are left out.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

from storage.errors import BadDocument
from tasks.text.scripts import Script, shifted

COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%.*?(?:\n[ \t]*|\Z)")
CODE = re.compile(
    r"(\\begin\s*\{(verbatim|lstlisting|minted|Verbatim|alltt)\*?\}.*?\\end\s*\{\2\*?\}"
    r"|\\verb\*?([^\w\s*\\])[^\n]*?\3)",
    re.DOTALL,
)
CONDITION = re.compile(r"\\(if(?!f(?![A-Za-z])|thenelse)[A-Za-z]*|else|fi)(?![A-Za-z@])")
UNIT = r"(?:[ \t]*(?:true[ \t]*)?(?:pt|pc|in|bp|cm|mm|dd|cc|sp|ex|em|mu|fil+)|\\[A-Za-z]+)"
LENGTH = rf"[ \t]*[-+]?(?:\d+\.?\d*|\.\d+){UNIT}"
ASSIGNED = re.compile(rf"[ \t]*=(?:{LENGTH}|[ \t]*-?\d+)")  # to a length or a number of plain TeX
SKIPPED = re.compile(rf"{LENGTH}(?:[ \t]*(?:plus|minus){LENGTH})*")
SKIPS = ("vskip", "hskip", "kern", "mskip", "raise", "lower", "moveleft", "moveright")
LEFT_COMMENT = re.compile(r"\\begin\s*\{comment\}.*?\\end\s*\{comment\}", re.DOTALL)
INPUT = re.compile(r"\\(?:input|include|subfile|import\{[^}]*\})(?![A-Za-z])\s*(?:\{([^{}]*)\}|(\S+))")
DEFINED = re.compile(
    r"\\(?:(?:re|provide)?newcommand|renewcommand|providecommand|DeclareRobustCommand|DeclareMathOperator|def|gdef|edef)\*?\s*"
    r"\{?\s*\\([A-Za-z]+|[^A-Za-z\s{}])\s*\}?\s*"
)
BEGIN, END = re.compile(r"\\begin\s*\{document\}"), re.compile(r"\\end\s*\{document\}")
PART = re.compile(
    r"^[^%\n]*\\documentclass\s*(?:\[[^\]]*\])?\s*\{(?:subfiles|standalone)\}", re.MULTILINE
)  # of another
LITERAL = "\ue008"  # around the number of a piece of code
DEEPEST = 20  # files within files, macros within macros
MOST = 20_000_000  # characters of a paper with its files and macros
SIGN = re.compile(
    r"\\begin\s*\{([A-Za-z]+\*?)\}|\\end\s*\{([A-Za-z]+\*?)\}"
    r"|\\([A-Za-z@]++)\*?(?:[ \t]*\n(?![ \t]*\n)|[ \t]*)|\\(.)|(\$\$?)|([{}~&])",
    re.DOTALL,
)
FORMULAS = {
    "equation", "align", "gather", "multline", "eqnarray", "displaymath", "math", "alignat", "flalign",
    "subequations", "dmath", "empheq",
}  # fmt: skip
RAW = {"verbatim", "lstlisting", "minted", "Verbatim", "alltt", "code"}
LEFT_OUT = {
    "figure", "table", "tabular", "tabularx", "longtable", "tikzpicture", "picture", "thebibliography",
    "filecontents", "wrapfigure", "subfigure", "sidewaystable", "sidewaysfigure", "pspicture", "CCSXML", "wraptable",
    "comment", "array", "algorithmic", "references", "keywords", "IEEEkeywords",
}  # fmt: skip
HEADINGS = {
    "part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5, "subparagraph": 6,
    "head": 2, "subhead": 3, "subsubhead": 4,
}  # fmt: skip
SHOWN = {  # whose argument is text
    "emph", "textbf", "textit", "texttt", "textsc", "textrm", "textsf",
    "textsl", "textup", "textmd", "text", "mbox", "underline", "uline", "hbox", "fbox", "textnormal", "enquote",
    "uppercase", "lowercase", "MakeUppercase", "centerline", "url",
    "path", "nolinkurl", "acr", "ac", "gls", "Gls", "makebox", "sout", "hl", "em", "bf", "it", "tt", "textquote",
    "st",
}  # fmt: skip
SCRIPTS: dict[str, Script] = {"textsuperscript": "sup", "textsubscript": "sub"}
SECOND = {
    "href", "textcolor", "colorbox", "parbox", "foreignlanguage", "raisebox", "fcolorbox",
}  # fmt: skip
SILENT = {  # name -> arguments that go with it
    "cite": 1, "citep": 1, "citet": 1, "citealp": 1, "citealt": 1,
    "citeauthor": 1, "citeyear": 1, "nocite": 1, "citenum": 1, "eqref": 1, "cref": 1, "Cref": 1,
    "autoref": 1, "pageref": 1, "label": 1, "bibliography": 1, "vspace": 1, "bibliographystyle": 1, "hspace": 1,
    "includegraphics": 1, "epsfig": 1, "usepackage": 1, "documentclass": 1, "setcounter": 2, "addtocounter": 2,
    "setlength": 2, "addtolength": 2, "thanks": 1, "author": 1, "affiliation": 1, "address": 1, "email": 1, "date": 1,
    "institute": 1, "pagestyle": 1, "thispagestyle": 1, "input": 1, "index": 1, "newtheorem": 2, "theoremstyle": 1,
    "pacs": 1, "preprint": 1, "keywords": 1, "markboth": 2, "title": 1, "affil": 1, "hypersetup": 1, "pdfbookmark": 2,
    "phantomsection": 0, "color": 1, "definecolor": 3, "bibitem": 1, "fontsize": 2, "linespread": 1,
    "graphicspath": 1, "rule": 2, "hfill": 0, "resizebox": 3, "scalebox": 2, "special": 1, "inst": 1, "orcid": 1,
    "subjclass": 1, "numberwithin": 2, "enlargethispage": 1, "addcontentsline": 3, "hyperref": 0, "citestyle": 1,
    "marginpar": 1, "todo": 1, "textwidth": 0, "selectlanguage": 1, "include": 1, "Citet": 1, "Citep": 1,
    "documentstyle": 1, "Refs": 0, "ref": 1,
}  # fmt: skip
AMS = {  # that AMS-TeX ends by another command
    "head", "subhead", "subsubhead", "title", "author", "address", "affil", "email", "date", "thanks", "keywords",
    "subjclass", "Refs",
}  # fmt: skip
BARE = {  # commands without an argument that show nothing: switches and places
    "noindent", "centering", "maketitle", "newpage", "clearpage", "pagebreak", "bigskip", "medskip", "smallskip",
    "small", "large", "Large", "LARGE", "huge", "tiny", "footnotesize", "scriptsize", "normalsize", "bfseries",
    "itshape", "sc", "rm", "sf", "sl", "bf", "it", "tt", "em", "appendix", "tableofcontents", "protect", "relax",
    "hfill", "vfill", "par", "indent", "raggedright", "raggedbottom", "sloppy", "onecolumn", "twocolumn",
    "singlespacing", "doublespacing", "break", "linebreak", "nolinebreak", "allowbreak", "bgroup", "egroup",
    "begingroup", "endgroup", "ttfamily", "rmfamily", "upshape", "sffamily", "scshape", "frenchspacing", "null",
    "acknowledgments", "hline", "smallbreak", "bigbreak", "goodbreak", "nobreak", "unskip", "ignorespaces",
    "leavevmode", "boldmath", "unboldmath", "balance", "cleardoublepage", "vskip", "hskip", "listoffigures",
    "listoftables", "printbibliography", "makeatletter", "makeatother", "qed", "xspace", "mathversion", "Huge",
    "normalfont", "flushbottom", "nonumber", "notag", "IEEEpeerreviewmaketitle", "titlepage", "endinput",
    "displaystyle",
}  # fmt: skip
SIGNS = {
    "ldots": "…", "dots": "…", "textellipsis": "…", "ss": "ß", "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "o": "ø",
    "O": "Ø", "aa": "å", "AA": "Å", "l": "ł", "L": "Ł", "i": "ı", "j": "ȷ", "S": "§", "P": "¶", "copyright": "©",
    "pounds": "£", "textendash": "–", "textemdash": "—", "textquoteleft": "‘", "textquoteright": "’",
    "textquotedblleft": "“", "dag": "†", "textquotedblright": "”", "textbackslash": "\\", "textasciitilde": "~",
    "textasciicircum": "^", "textless": "<", "textgreater": ">", "textbar": "|", "textdegree": "°", "LaTeX": "LaTeX",
    "TeX": "TeX", "BibTeX": "BibTeX", "quad": " ", "qquad": " ", "slash": "/", "newline": "\n", "textbullet": "•",
    "textregistered": "®", "texttrademark": "™", "ddag": "‡", "euro": "€", "textmu": "µ", "lq": "‘", "rq": "’",
    "thinspace": " ", "enspace": " ", "space": " ", "degree": "°", "textunderscore": "_", "cdots": "…",
    "textrightarrow": "→", "guillemotleft": "«", "guillemotright": "»", "etal": "et al.",
}  # fmt: skip
ACCENTS = {
    "'": "\u0301", "`": "\u0300", "^": "\u0302", '"': "\u0308", "~": "\u0303", "=": "\u0304", ".": "\u0307",
    "u": "\u0306", "v": "\u030c", "H": "\u030b", "c": "\u0327", "k": "\u0328", "r": "\u030a", "d": "\u0323",
    "b": "\u0331",
}  # fmt: skip


STATEMENT = re.compile(
    r"\\newtheorem\*?\s*\{([^{}]+)\}\s*(?:\[[^\]]*\]\s*)?\{((?:[^{}]|\{[^{}]*\})*)\}"
    r"|\\declaretheorem\s*(?:\[((?:[^\[\]{}]|\{[^{}]*\})*)\]\s*)?\{([^{}]+)\}"
)
LABELLED = re.compile(r"(?:\s|\\label\s*\{[^{}]*\})*")
USUAL = (  # in classes of journals
    "theorem", "lemma", "proposition", "corollary", "definition", "remark", "example", "claim", "conjecture", "proof",
)  # fmt: skip


class Macro(NamedTuple):
    """What a paper's own command stands for: the number of its arguments, the first one's default, and its body."""

    arguments: int
    default: str | None
    body: str


def reader() -> Callable[[dict[str, str]], dict[str, Any]]:
    """The function from a paper's files by path to its `text`, `title`, and `lost`, the commands left out by name."""
    return read_paper


def read_paper(files: dict[str, str]) -> dict[str, Any]:
    """See `reader`. `text` is empty without a main file. Raises BadDocument for macros that grow without end."""
    main = main_file(files)
    if main is None:
        return {"text": "", "lost": {}}
    whole = _with_inputs(files, main)
    before, body = _parted(whole)
    macros = defined(before)
    body = STATEMENT.sub("", expanded(body, macros | defined(body)))
    paper = _Paper(_statements(whole))
    tidy = _tidy(paper.text(body))
    text = re.sub(f"{LITERAL}(\\d+){LITERAL}", lambda one: paper.literals[int(one.group(1))], tidy)
    title = re.search(r"\\title\s*(?:\[[^\]]*\])?\s*\{", before + body)
    found = {"text": text, "lost": paper.lost}
    if title:
        named = _Paper().text(_group(before + body, title.end() - 1)[0])
        found["title"] = " ".join(_tidy(named).split())[:300]
    return {key: value for key, value in found.items() if value or key != "title"}


def main_file(files: dict[str, str]) -> str | None:
    """The file that TeX is run on: one that begins a document, before one that declares a class, nearest to the top."""
    marks = (r"^[^%\n]*\\begin\s*\{document\}", r"^[^%\n]*\\document(?:class|style)", r"\\(?:bye|end)\b|\\section\b")
    for mark in marks:
        found = [name for name, text in files.items() if re.search(mark, text, re.MULTILINE)]
        if found:
            return min(
                found, key=lambda name: (bool(PART.search(files[name])), name.count("/"), -len(files[name]), name)
            )
    return None


def _parted(text: str) -> tuple[str, str]:
    """What comes before the document that a file begins, and the document. All of a file that begins none is one."""
    begin = BEGIN.search(text)
    end = END.search(text, begin.end() if begin else 0)
    before, at = (text[: begin.start()], begin.end()) if begin else ("", 0)
    return before, text[at : end.start() if end else len(text)]


def _with_inputs(files: dict[str, str], name: str, within: tuple[str, ...] = ()) -> str:
    """A file without comments and with those in place that it takes in."""
    if len(within) > DEEPEST or name in within:
        return ""
    pieces = CODE.split(files[name])  # in which a percent sign isn't a comment
    pieces[::4] = [COMMENT.sub(r"\1", piece) for piece in pieces[::4]]
    text = LEFT_COMMENT.sub("", "".join(piece for at, piece in enumerate(pieces) if at % 4 < 2))
    text = _without_unused(text)
    folder = PurePosixPath(name).parent

    def taken(found: re.Match[str]) -> str:
        stated = (found.group(1) or found.group(2) or "").strip().strip('"')
        for path in (stated, f"{stated}.tex", str(folder / stated), str(folder / f"{stated}.tex")):
            path = path.removeprefix("./")
            if path in files:
                return _parted(_with_inputs(files, path, (*within, name)))[1]  # one of `subfiles` is a document too
        return ""

    whole = INPUT.sub(taken, text)
    if len(whole) > MOST:
        raise BadDocument("too_long", why="with its files")
    return whole


def _statements(text: str) -> dict[str, str]:
    """What theorems, lemmas and the like are called, by their environment."""
    found = {name: name.capitalize() for name in USUAL}
    for name, title, options, declared in STATEMENT.findall(text):
        stated = re.search(r"(?:name|title)\s*=\s*\{?([^,{}]*)", options)
        found[name or declared] = title if name else stated[1].strip() if stated else declared.capitalize()
    return {name: " ".join(_Paper().text(title).split()) for name, title in found.items()}


def _without_unused(text: str) -> str:
    """A text without what lies between `\\iffalse` and its `\\else` or `\\fi`, as many leave out what they wrote."""
    parts: list[str] = []
    at, within = 0, 0  # `within` counts conditions, from \iffalse on
    for found in CONDITION.finditer(text) if "\\iffalse" in text else ():
        command = found.group(1)
        if not within:
            if command == "iffalse":
                parts.append(text[at : found.start()])
                within = 1
        elif command.startswith("if"):
            within += 1
        elif command == "fi" or within == 1:
            within -= 1
            at = found.end()
    return "".join([*parts, "" if within else text[at:]])


def defined(text: str) -> dict[str, Macro]:
    """The macros that a text defines by \\newcommand, \\def and their like."""
    found: dict[str, Macro] = {}
    for match in DEFINED.finditer(text):
        name, at = match.group(1), match.end()
        arguments, default = 0, None
        if stated := re.compile(r"\[(\d)\]\s*").match(text, at):
            arguments, at = int(stated.group(1)), stated.end()
            if optional := re.compile(r"\[([^\]]*)\]\s*").match(text, at):
                default, at = optional.group(1), optional.end()
        elif stated := re.compile(r"(?:#\d)+\s*").match(text, at):
            arguments, at = stated.group().count("#"), stated.end()
        if text[at : at + 1] == "{":
            body, _ = _group(text, at)
            if "DeclareMathOperator" in match.group():
                body = f"\\operatorname{{{body}}}"
            if not re.search(rf"\\{re.escape(name)}(?![A-Za-z@])", body):  # one within itself would have no end
                found[name] = Macro(arguments, default, body)
    return found


def expanded(text: str, macros: dict[str, Macro]) -> str:
    """A text with macros in place, those within others too. Raises BadDocument if it grows without end."""
    if not macros:
        return text
    names = "|".join(sorted((re.escape(name) for name in macros if name.isalpha()), key=len, reverse=True))
    if not names:
        return text
    use = re.compile(rf"\\({names})(?![A-Za-z@])[ \t]*")
    text = _without_definitions(text)
    for _ in range(DEEPEST):
        parts, at, changed, size = [], 0, False, 0
        while found := use.search(text, at):
            parts.append(text[at : found.start()])
            shown, at = _used(text, found.end(), macros[found.group(1)])
            space = found.group().endswith((" ", "\t")) and macros[found.group(1)].arguments == 0
            parts.append(shown + (" " if space and not shown.endswith(" ") and shown[-1:].isalpha() else ""))
            changed = True
            size += len(parts[-1]) + len(parts[-2])
            if size > MOST:
                raise BadDocument("too_long", why="with its macros")
        text = "".join([*parts, text[at:]])
        if not changed:
            break
    return text


def _without_definitions(text: str) -> str:
    parts, at = [], 0
    for match in DEFINED.finditer(text):
        if match.start() < at:
            continue
        begin = match.end()
        while (head := re.compile(r"\[[^\]]*\]\s*|#\d\s*").match(text, begin)) is not None:
            begin = head.end()
        if text[begin : begin + 1] == "{":
            parts.append(text[at : match.start()])
            _, at = _group(text, begin)
    return "".join([*parts, text[at:]])


def _used(text: str, at: int, macro: Macro) -> tuple[str, int]:
    """What a macro's use shows, and where that ends."""
    values: list[str] = []
    if macro.default is not None:
        value, at = _optional(text, at)
        values.append(macro.default if value is None else value)
    while len(values) < macro.arguments:
        value, at = _argument(text, at)
        values.append(value)
    return re.sub(r"#([1-9])", lambda one: ([*values, *[""] * 9])[int(one.group(1)) - 1], macro.body), at


def _argument(text: str, at: int) -> tuple[str, int]:
    """An argument: what is in braces, a command, or a sign."""
    while text[at : at + 1].isspace():
        at += 1
    if text[at : at + 1] == "{":
        return _group(text, at)
    command = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL).match(text, at)
    return (command.group(), command.end()) if command else (text[at : at + 1], at + 1)


def _optional(text: str, at: int) -> tuple[str | None, int]:
    """What is in square brackets, None if there are none."""
    found = re.compile(r"\s?\[((?:[^\[\]{}]|\{[^{}]*\})*)\]").match(text, at)
    return (found.group(1), found.end()) if found else (None, at)


PARAGRAPH = re.compile(r"\S[ \t]*\n[ \t]*\n\s*\S")  # the end of one, and the next
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _group(text: str, at: int) -> tuple[str, int]:
    """What is in the braces that open at a place, and where they end: at the text's end if they don't."""
    depth = 0
    for found in BRACE.finditer(text, at):
        if found.group() == "{":
            depth += 1
        elif found.group() == "}":
            depth -= 1
            if not depth:
                return text[at + 1 : found.start()], found.end()
    return text[at + 1 :], len(text)


class _Paper:
    """The text of a paper's body, as it is collected."""

    def __init__(self, statements: Mapping[str, str] = MappingProxyType({})) -> None:
        self.lost: Counter[str] = Counter()
        self._statements = statements
        self.literals: list[str] = []
        self._depth = 0

    def text(self, source: str) -> str:
        """The text of LaTeX without comments and macros."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadDocument("nested_too_deep")
        parts: list[str] = []
        at = 0
        while found := SIGN.search(source, at):
            parts.append(source[at : found.start()])
            begun, ended, command, sign, dollars, other = found.groups()
            if begun is not None:
                shown, at = self._environment(begun, source, found.start(), found.end())
            elif ended is not None:
                shown, at = ("\n\n" if ended.rstrip("*") not in ("small", "center") else "\n"), found.end()
            elif command is not None:
                shown, at = self._command(command, source, found.end(), found.group())
            elif sign is not None:
                shown, at = self._sign(sign, source, found.end())
            elif dollars is not None:
                shown, at = _formula(source, found.start(), dollars)
            else:
                shown, at = (" " if other in "~&" else ""), found.end()
            parts.append(shown)
        self._depth -= 1
        return "".join([*parts, source[at:]])

    def _environment(self, name: str, source: str, start: int, at: int) -> tuple[str, int]:
        plain = name.rstrip("*")
        if plain in FORMULAS or plain in RAW or plain in LEFT_OUT:
            close = re.compile(rf"\\end\s*\{{{re.escape(name)}\}}").search(source, at)
            inner, after = (source[at : close.start()], close.end()) if close else (source[at:], len(source))
            if plain in FORMULAS:
                whole = re.sub(r"\\label\s*\{[^{}]*\}", "", source[start:after])
                return f"\n\n{re.sub(chr(10) + '{2,}', chr(10), whole)}\n\n", after
            if plain in RAW:
                self.literals.append(inner.strip("\n"))
                return f"\n\n{LITERAL}{len(self.literals) - 1}{LITERAL}\n\n", after
            captions = [
                _group(inner, one.end() - 1)[0] for one in re.finditer(r"\\caption\s*(?:\[[^\]]*\])?\s*\{", inner)
            ]
            return "".join(f"\n\n{self.text(caption).strip()}\n\n" for caption in captions), after
        note, at = _optional(source, at)
        if title := self._statements.get(name, self._statements.get(plain)):
            noted = " ".join(self.text(note).split()) if note else ""
            said = noted or title if plain == "proof" else f"{title} ({noted})" if noted else title
            return f"\n\n{said}. ", LABELLED.match(source, at).end()  # type: ignore[union-attr]
        if plain in ("minipage", "adjustwidth", "multicols", "spacing", "list", "tabbing", "IEEEbiography"):
            _, at = _argument(source, at)
        return ("\n\nAbstract\n\n" if plain == "abstract" else "\n\n" if plain != "document" else ""), at

    def _command(self, name: str, source: str, at: int, whole: str) -> tuple[str, int]:
        if assigned := ASSIGNED.match(source, at) or (name in SKIPS and SKIPPED.match(source, at)):
            return "", assigned.end()
        ended = re.compile(rf"\\end{name}(?![A-Za-z])").search(source, at) if name in AMS else None  # of AMS-TeX
        if ended and name not in HEADINGS:
            return "", ended.end()
        if name in HEADINGS:
            _, at = _optional(source, at)
            title, at = (source[at : ended.start()], ended.end()) if ended else _argument(source, at)
            return f"\n\n{'#' * HEADINGS[name]} {' '.join(self.text(title).split())}\n\n", at
        if name == "item":
            label, at = _optional(source, at)
            return f"\n- {f'{self.text(label)} ' if label else ''}", at
        if name in SIGNS:
            return SIGNS[name] + (" " if whole[-1:].isspace() and source[at - 1 : at] == "\n" else ""), at
        if name in ("footnote", "footnotetext"):
            _, at = _optional(source, at)
            note, at = _argument(source, at)
            return f" ({self.text(note).strip()})", at
        if name in SCRIPTS:
            script, at = _argument(source, at)
            return shifted(self.text(script), SCRIPTS[name]), at
        if name == "ensuremath":
            formula, at = _argument(source, at)
            return f"${formula}$", at
        if name in ("verb", "lstinline") and at < len(source):
            end = source.find(source[at], at + 1)
            return (source[at + 1 : end], end + 1) if end > 0 else ("", at)
        if name in ACCENTS:
            return self._sign(name, source, at)
        if name in BARE:
            return ("\n\n" if name in ("par", "newpage", "clearpage") else ""), at
        if name in SILENT or name in SHOWN or name in SECOND:
            while (optional := _optional(source, at))[0] is not None:
                at = optional[1]
            values = []
            for _ in range(SILENT.get(name, 2 if name in SECOND else 1)):
                value, at = _argument(source, at)
                values.append(value)
            return (self.text(values[-1]) if name not in SILENT else ""), at
        self.lost[name[:40]] += 1
        return "", at  # what is in its braces stays

    def _sign(self, sign: str, source: str, at: int) -> tuple[str, int]:
        if sign in "([":
            close = source.find("\\" + {"(": ")", "[": "]"}[sign], at)
            inner = source[at : max(at, close)]
            if close < 0 or PARAGRAPH.search(inner):  # not closed
                return "", at
            inner = re.sub(r"\\label\s*\{[^{}]*\}", "", inner)
            return (f"${inner.strip()}$" if sign == "(" else f"\n\n$${inner.strip()}$$\n\n"), close + 2
        if sign in ACCENTS:
            letter, at = _argument(source, at)
            letter = self.text(letter).strip() or " "
            letter = {"ı": "i", "ȷ": "j"}.get(letter[0], letter[0]) + letter[1:]
            return unicodedata.normalize("NFC", letter[0] + ACCENTS[sign] + letter[1:]), at
        if sign == "\\":
            _, at = _optional(source, at + (source[at : at + 1] == "*"))
            return "\n", at
        return {",": " ", " ": " ", "\n": " ", ";": " ", ":": " ", "!": "", "-": "", "/": "", "@": ""}.get(
            sign, sign
        ), at


def _formula(source: str, start: int, dollars: str) -> tuple[str, int]:
    """A formula as it is, and where it ends. A dollar that isn't closed in its paragraph is a dollar."""
    close = re.compile(r"(?<!\\)\$\$" if dollars == "$$" else r"(?<!\\)\$").search(source, start + len(dollars))
    if close is None or PARAGRAPH.search(source, start + len(dollars), close.start()):
        return dollars, start + len(dollars)
    whole = source[start : close.end()]
    whole = re.sub(r"\\label\s*\{[^{}]*\}", "", whole)
    return (whole if dollars == "$" else f"\n\n{whole.strip()}\n\n"), close.end()


def _tidy(text: str) -> str:
    """Lines of a paragraph joined, but not in code and formulas on lines of their own, and TeX's quotes and dashes."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        if not paragraph.strip():
            continue
        if paragraph.lstrip().startswith(("$$", "\\begin{")):
            paragraphs.append(paragraph.strip())
            continue
        lines = [" ".join(line.split()) for line in re.split(r"\n(?=- )", paragraph)]
        plain = "\n".join(line for line in lines if line)
        pieces = re.split(r"(\$[^$]*\$)", plain)
        pieces[::2] = [
            piece.replace("---", "—").replace("--", "–").replace("``", "“").replace("''", "”") for piece in pieces[::2]
        ]
        plain = re.sub(r"\(\s*[;,]?\s*\)|\[\s*\]", "", "".join(pieces))
        plain = re.sub(r" (?=[,.;:)])", "", re.sub(r" {2,}", " ", plain)).strip()
        if plain and plain != "-":
            paragraphs.append(plain)
    text = re.sub(r"\n\n(?=- )", "\n", "\n\n".join(paragraphs))
    return re.sub(r"(?:\n\n#+ [^\n]*)+\Z", "", text)  # headings with nothing below
