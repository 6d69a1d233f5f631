"""Templates of Wikipedia that carry words, as what they show, by name.

Templates are programs of each wiki, which change daily. Running them needs the wiki. So simple ones that are part of
sentences are listed here. The rest is one of two kinds: templates that show no running text (infoboxes, navigation,
citations, notes to editors), which are left out, and all others, which are left out and counted by name.

The names are of the English, German, French and Spanish Wikipedias, whose uses differ in one case: `citation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tasks.text.scripts import Script, shifted


class Call(NamedTuple):
    """A template's use: its name in small letters, its values by position, and by name."""

    name: str
    values: list[str]
    named: Mapping[str, str]
    language: str

    def value(self, number: int, *names: str) -> str:
        """The value at a position from 0, or of one of these names. Empty if there is none."""
        given = next((self.named[name] for name in names if self.named.get(name)), "")
        return given or (self.values[number] if number < len(self.values) else "")


Shown = Callable[[Call], str]
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
UNITS = {
    "km2": "km²", "m2": "m²", "cm2": "cm²", "mi2": "sq mi", "sqmi": "sq mi", "sqft": "sq ft", "sqkm": "km²",
    "m3": "m³", "km3": "km³", "cuft": "cu ft", "cumi": "cu mi", "cm3": "cm³", "ft2": "sq ft", "C": "°C", "F": "°F",
    "K": "K", "in": "in", "nmi": "nmi", "PD/sqmi": "per sq mi", "/km2": "per km²", "/sqmi": "per sq mi", "m/s": "m/s",
    "km/h": "km/h", "lbs": "lb", "foot": "ft", "mile": "mi", "metre": "m", "meter": "m", "C-change": "°C",
    "F-change": "°F", "MT": "t",
}  # fmt: skip
BETWEEN = {
    "-": "–", "–": "–", "to": " to ", "to(-)": " to ", "and": " and ", "or": " or ", "x": " × ", "by": " by ",
    "+/-": " ± ", "±": " ± ", "*": " × ", "to about": " to about ", "and(-)": " and ", "xx": " × ",
}  # fmt: skip
NUMBER = re.compile(r"^[+\-−]?[\d,.]+(?:[⁄/]\d+)?(?:e[+\-]?\d+)?$")
LANGUAGES = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish",
    "de": "German", "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian", "eu": "Basque",
    "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish", "gd": "Scottish Gaelic", "grc": "Ancient Greek",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian",
    "is": "Icelandic", "it": "Italian", "ja": "Japanese", "ka": "Georgian", "ko": "Korean", "la": "Latin",
    "lt": "Lithuanian", "lv": "Latvian", "mi": "Māori", "mk": "Macedonian", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sa": "Sanskrit", "sk": "Slovak",
    "sl": "Slovene", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "ta": "Tamil", "th": "Thai", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "yi": "Yiddish", "zh": "Chinese",
}  # fmt: skip


def raised(text: str) -> str:
    """Text as superscript if there are such characters, plain if it is letters, else after a circumflex."""
    return _shifted(text, "sup", "^")


def lowered(text: str) -> str:
    """Text as subscript, as `raised`."""
    return _shifted(text, "sub", "_")


def _shifted(text: str, script: Script, mark: str) -> str:
    text = text.strip()
    found = shifted(text, script)
    return found if found != text or text.isalpha() or not text else f"{mark}({text})"


def _first(call: Call) -> str:
    return call.value(0, "1", "text", "content", "quote", "texte")


def _second(call: Call) -> str:
    return call.value(1) or call.value(0)


def _last(call: Call) -> str:
    return call.values[-1] if call.values else ""


def _joined(sign: str) -> Shown:
    return lambda call: sign.join(value.strip() for value in call.values if value.strip())


def _always(text: str) -> Shown:
    return lambda call: text


def _around(before: str, after: str = "") -> Shown:
    return lambda call: f"{before}{_first(call)}{after}" if _first(call) else ""


def _items(call: Call) -> str:
    return "\n" + "\n".join(f"- {value.strip()}" for value in call.values if value.strip()) + "\n"


def _quote(call: Call) -> str:
    text = call.value(0, "text", "quote", "zitat", "1", "content", "texte", "cita")
    by = call.value(1, "author", "sign", "autor", "auteur", "2", "source")
    return f"\n\n{text.strip()}\n" + (f"— {by.strip()}\n\n" if by.strip() else "\n")


def _language(call: Call) -> str:
    """{{lang-fr|Paris}} and {{langx|fr|Paris}}: `French: Paris`."""
    code, _, rest = call.name.partition("-")[2], "", call.values
    if call.name == "langx":
        code, rest = call.value(0), call.values[1:]
    if not rest or not rest[0].strip():
        return ""
    name = LANGUAGES.get(code.strip(), "")
    how = call.named.get("translit") or (rest[1] if len(rest) > 1 else "")
    shown = f"{name}: {rest[0].strip()}" if name and call.named.get("label") != "none" else rest[0].strip()
    return shown + (f", {how.strip()}" if how.strip() else "")


def _convert(call: Call) -> str:
    """The amount in the unit that it is given in: `{{convert|5|to|10|km|mi}}` is `5 to 10 km`."""
    shown, rest = "", list(call.values)
    while rest:
        value = rest.pop(0).strip()
        if not NUMBER.match(value):
            return f"{shown} {UNITS.get(value, value)}".strip() if shown else ""
        shown += value
        if rest and rest[0].strip() in BETWEEN:
            shown += BETWEEN[rest.pop(0).strip()]
        elif len(rest) > 2 and [bool(NUMBER.match(part.strip())) for part in rest[:3]] == [False, True, False]:
            shown += f" {UNITS.get(rest[0].strip(), rest[0].strip())} "  # feet and inches
            rest.pop(0)
    return shown


def _parts(values: list[str]) -> tuple[int, int, int]:
    """Year, month and day, 0 where they aren't given."""
    numbers = [int(value) if value.strip().isdecimal() else 0 for value in values[:3]]
    year, month, day = (*numbers, 0, 0, 0)[:3]
    return year, month if 1 <= month <= 12 else 0, day if 1 <= day <= 31 else 0


def _day(values: list[str], day_first: bool) -> str:
    year, month, day = _parts(values)
    if not year:
        return " ".join(value.strip() for value in values if value.strip())
    if not month:
        return str(year)
    name = MONTHS[month - 1]
    return f"{name} {year}" if not day else f"{day} {name} {year}" if day_first else f"{name} {day}, {year}"


def _date(call: Call) -> str:
    return _day(call.values, call.named.get("df", "") in ("y", "yes"))


def _death(call: Call) -> str:
    shown = _day(call.values[:3], call.named.get("df", "") in ("y", "yes"))
    died, born = _parts(call.values[:3]), _parts(call.values[3:6])
    if all(died) and all(born):
        age = died[0] - born[0] - (died[1:] < born[1:])
        return f"{shown} (aged {age})"
    return shown


def _sic(call: Call) -> str:
    """{{sic|teh}} is `teh [sic]`, and with `hide` only `teh`."""
    words = "".join(call.values[:2])
    return words if call.named.get("hide") else f"{words} [sic]".strip()


def _ordinal(call: Call) -> str:
    number = _first(call).strip()
    ends = "th" if number[-2:-1] == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(number[-1:], "th")
    return f"{number}{ends}" if number.isdecimal() else number


def _as_of(call: Call) -> str:
    if call.named.get("alt"):
        return call.named["alt"]
    begins = "as of" if call.named.get("lc") in ("y", "yes") else "As of"
    if call.named.get("since") in ("y", "yes"):
        begins = "since" if begins[0] == "a" else "Since"
    return f"{begins} {_day(call.values, call.named.get('df') in ('y', 'yes'))}"


def _span(mark: str) -> Shown:
    def shown(call: Call) -> str:
        values = [value.strip() for value in call.values[:2] if value.strip()]
        return f"{mark} {'–'.join(values)}" if values else mark

    return shown


def _fraction(call: Call) -> str:
    values = [value.strip() for value in call.values if value.strip()]
    if len(values) == 3:
        return f"{values[0]} {values[1]}/{values[2]}"
    return "/".join(values) if len(values) == 2 else f"1/{values[0]}" if values else ""


def _amount(call: Call) -> str:
    """{{val|1.5|0.1|e=3|u=kg}}."""
    shown = call.value(0) + (f" ± {call.value(1)}" if call.value(1) else "")
    shown += f"×10{raised(call.named['e'])}" if call.named.get("e") else ""
    unit = call.named.get("u") or call.named.get("ul") or ""
    return f"{shown} {unit}".strip()


def _formula(call: Call) -> str:
    """{{chem|H|2|O}} and {{chem2|H2O}}."""
    if call.name in ("chem", "chem/link", "tau"):
        return "".join(lowered(value) if value.strip().isdecimal() else value.strip() for value in call.values)
    return re.sub(r"(?<=[A-Za-z)\]])\d+", lambda found: lowered(found.group()), call.value(0))


def _chinese(call: Call) -> str:
    labels = {"c": "Chinese", "s": "simplified Chinese", "t": "traditional Chinese", "p": "pinyin", "w": "Wade–Giles"}
    shown = [f"{label}: {call.named[key].strip()}" for key, label in labels.items() if call.named.get(key)]
    return "; ".join(shown)


def _nihongo(call: Call) -> str:
    first, *others = (value.strip() for value in call.values[:4])
    inner = ", ".join(value for value in others if value)
    return f"{first} ({inner})" if first and inner else first or inner


def _ship(call: Call) -> str:
    values = [value.strip() for value in call.values[: 2 if call.name == "ship" else 1]]
    return " ".join(values if call.name == "ship" else [call.name.upper(), *values])


def _age(call: Call) -> str:
    first, last = _parts(call.values[:3]), _parts(call.values[3:6])
    return str(last[0] - first[0] - (last[1:] < first[1:])) if all(first) and all(last) else ""


NAMES_OF_FIRST = (
    "nowrap", "nobr", "nobreak", "no break", "no wrap", "nobold", "small", "smaller", "big", "bigger", "large",
    "larger", "em", "strong", "smallcaps", "small caps", "sc", "smallcaps2", "pc", "petites capitales", "kapitälchen",
    "abbr", "abréviation", "tooltip", "vanchor", "visible anchor", "math", "mvar", "var", "mono", "code", "kbd",
    "samp", "not a typo", "as written", "typo", "proper name", "noitalic", "normal", "underline", "strikethrough",
    "strike", "ipa", "api", "afi", "grapheme", "bdi", "script", "formatnum", "num", "nombre", "nts", "flag",
    "flagcountry", "flagu", "ill", "lien", "interlanguage link", "illm", "center", "centre", "plainlist",
    "plain list", "flatlist", "indent", "block indent", "text", "highlight", "tq", "tqq", "xt", "nolink",
    "script/hebrew", "script/arabic", "hebrew", "poem", "verse", "citation needed span", "clarify span", "mention",
    "nbay", "date", "fecha", "blockindent", "nobelium", "ucfirst", "lcfirst", "#formatdate", "sans-serif",
    "serif", "keypress", "button", "title case", "citation bloc", "nowraplinks", "pretty print", "in5", "hair space",
    "font", "abbrlink",
)  # fmt: skip
NAMES_OF_LAST = (
    "lang", "langue", "transl", "transliteration", "wikt-lang", "color", "colour", "font color", "fontcolor",
    "resize", "background color", "bg", "lang-unmarked", "rtl-lang", "script/cyrillic", "sorttext",
    "cyrl",
)  # fmt: skip
QUOTES = (
    "quote", "blockquote", "cquote", "quotation", "quote box", "quote frame", "poemquote", "poem quote", "bquote",
    "rquote", "zitat", "zitat-fr", "cita", "cita destacada", "citation bloc", "début citation", "centered pull quote",
    "pull quote", "long quote", "block quote", "cita larga",
)  # fmt: skip
SIGNS = {
    "=": "=", "!": "|", "!!": "||", "(": "{", ")": "}", "((": "{{", "))": "}}", "ndash": "–", "nsndns": "–",
    "en dash": "–", "snd": " – ", "spnd": " – ", "sndash": " – ", "spaced ndash": " – ", "spaced en dash": " – ",
    "–": " – ", "mdash": "—", "em dash": "—", "emdash": "—", "spaced mdash": " — ", "—": " — ", "nbsp": " ",
    "space": " ", "thin space": " ", "thinsp": " ", "hairsp": " ", "nnbsp": " ", "spaces": " ", "zwsp": "", "wbr": "",
    "shy": "", "dot": " · ", "·": " · ", "middot": "·", "bull": " • ", "bullet": " • ", "•": " • ", "ellipsis": "…",
    "...": "…", "'": "'", "\"": '"', "'s": "'s", "pi": "π", "minus": "−", "times": "×", "x": "×", "deg": "°",
    "plusminus": "±", "pm": "±", "euro": "€", "pipe": "|", "asterisk": "*", "hash": "#", "number sign": "#",
    "lbrace": "{", "rbrace": "}", "lsqb": "[", "rsqb": "]", "bc": "BC", "prime": "′", "pprime": "″", "okina": "ʻ",
    "ayin": "ʽ", "hamza": "ʼ", "break": "\n", "br": "\n", "clear": "", "-": "", "clr": "",
    "pagename": "", "sharp": "♯", "flat": "♭", "natural": "♮", "music": "", "1er": "1er", "1re": "1re", "mme": "Mme",
    "mlle": "Mlle", "m.": "M.", "mm.": "MM.", "dr": "Dr", "av jc": "av. J.-C.", "c": "c.",
}  # fmt: skip
TABLE: dict[str, Shown] = {
    **{name: _always(text) for name, text in SIGNS.items()}, **dict.fromkeys(NAMES_OF_FIRST, _first),
    **dict.fromkeys(NAMES_OF_LAST, _last), **dict.fromkeys(QUOTES, _quote),
    **dict.fromkeys(("convert", "cvt", "unit", "unidad", "unité"), _convert),
    **dict.fromkeys((
        "birth date", "birth date and age", "bda", "dob", "birth-date", "birth year and age", "death date",
        "start date", "end date", "start date and age", "film date", "release date", "dts", "birth year",
        "death year", "date of birth", "end-date", "start-date", "launch date",
    ), _date),
    **dict.fromkeys(("death date and age", "dda", "death year and age", "death-date and age"), _death),
    **dict.fromkeys(("circa", "ca", "ca."), _span("c.")), **dict.fromkeys(("floruit", "fl", "fl."), _span("fl.")),
    **dict.fromkeys(("reign", "r."), _span("r.")), **dict.fromkeys(("born", "b."), _span("b.")),
    **dict.fromkeys(("died", "d."), _span("d.")),
    **dict.fromkeys(("frac", "fraction", "sfrac", "tfrac", "frac2", "bruch"), _fraction),
    **dict.fromkeys(("hlist", "flat list", "hlist-comma", "comma separated entries", "cslist"), _joined(", ")),
    **dict.fromkeys((
        "ubl", "ublist", "unbulleted list", "bulleted list", "blist", "ordered list", "numbered list",
    ), _items),
    **dict.fromkeys(("zh", "lang-zh", "zh-cn"), _chinese),
    **dict.fromkeys(("nihongo", "nihongo krt", "nihongo foot", "japonais"), _nihongo),
    **dict.fromkeys(("ship", "uss", "hms", "hmas", "hmcs", "ss", "rms", "usns", "hmnzs", "ins", "usat"), _ship),
    **dict.fromkeys(("chem", "chem2", "chem/link"), _formula), **dict.fromkeys(("as of", "asof"), _as_of),
    **dict.fromkeys(("abbr-second", "sort", "dsort", "hs", "piped link", "transcription"), _second),
    **dict.fromkeys(("sortname", "gaps", "s.", "n°", "numéro", "fr-date", ), _joined(" ")),
    **dict.fromkeys(("us$", "usd", "$"), _around("US$")),
    **dict.fromkeys(("gbp", "£", "pound sterling"), _around("£")),
    **dict.fromkeys(("inr", "indian rupee", "₹"), _around("₹")), **dict.fromkeys(("a$", "aud"), _around("A$")),
    **dict.fromkeys(("respell", "pronunciation respelling key"), _joined("-")), "€": _around("€"),
    "jpy": _around("¥"), "cny": _around("CN¥"), "php": _around("₱"), "langx": _language, "as-of": _as_of,
    "val": _amount, "sup": lambda call: raised(_first(call)), "sub": lambda call: lowered(_first(call)),
    "sqrt": _around("√"), "radic": _around("√"), "e": lambda call: f"×10{raised(_first(call))}",
    "10^": lambda call: f"10{raised(_first(call))}", "tmath": _around("$", "$"), "abs": _around("|", "|"),
    "sic": _sic, "ordinal": _ordinal, "linktext": _joined(""), "bracket": _around("[", "]"),
    "brackets": _around("[", "]"), "interp": _around("[", "]"),
    "angbr": _around("⟨", "⟩"), "angle bracket": _around("⟨", "⟩"), "gloss": _around("‘", "’"),
    "single-gloss": _around("‘", "’"), "bra": _around("⟨", "|"), "ket": _around("|", "⟩"), "ad": _around("AD "),
    "bce": _around("", " BCE"), "ce": _around("", " CE"), "age": _age, "nihongo2": _first, "nihongo3": _nihongo,
    "s": lambda call: f"{call.value(0)}{call.value(1) or 'e'} siècle",
    "siècle": lambda call: f"{call.value(0)}{call.value(1) or 'e'} siècle", "frs": _first, "ens": _first,
    "cquote2": _quote, "siglo": lambda call: f"siglo {call.value(0)}", "sic span": _around("", " [sic]"),
    "lc": lambda call: _first(call).lower(), "uc": lambda call: _first(call).upper(),
    "number": _first, "mpl": _first, "mp": lambda call: f"{call.value(0)}{lowered(call.value(1))}",
    "isotope": _joined("-"), "su": _joined(" "), "overline": _first, "overset": _last, "nuclide": _joined("-"),
    "simplenuclide": _joined("-"),
}  # fmt: skip
BY_LANGUAGE: dict[tuple[str, str], Shown] = {
    ("fr", "citation"): _around("« ", " »"),
    ("fr", "lang"): _last,
    ("de", "s"): _first,
}
# Without running text: not counted
SILENT = re.compile(
    r"""^(?:infobox|info\s?box|taxobox|automatic\staxobox|speciesbox|chembox|drugbox|geobox|starbox|sidebar|navbox|ficha
    |navigationsleiste|personendaten|palette|portail|portal|portada|authority\scontrol|normdaten
    |control\sde\sautoridades|cite|citation|cita\s|citar|literatur|internetquelle|ouvrage|article|lien\sweb|web$
    |harv|sfn|sfnm|refn|efn|note|notelist|r$|rp$|reflist|references|references\slist|refbegin|refend|références
    |listaref|isbn|issn|doi|oclc|arxiv|pmid|s2cid|webarchive|dead\slink|better\ssource|citation\sneeded|cn$|fact$
    |clarify|when$|who$|which$|by\swhom|according\sto\swhom|whom$|where$|why$|how$|specify|vague|dubious|disputed
    |failed\sverification|verify|verification|unreliable|original|update|needs?\s|more\s|pov|npov|cleanup
    |multiple\sissues|refimprove|unreferenced|orphan|primary\ssources|advert|tone|expand|merge|split|copy\s?edit
    |globalize|weasel|peacock|too\stechnical|notability|lead\s|by$|page\sneeded|short\sdescription
    |use\s(?:dmy|mdy|[a-z]+)\s|use\s.*english|good\sarticle|featured\sarticle|pp-|pp$|about$|for$|for\smulti|other\s
    |otheruses|redirect|distinguish|hatnote|main$|main\sarticle|see\salso|further|details|article\sdétaillé
    |hauptartikel|artículo\sprincipal|véase|siehe\sauch|dieser\sartikel|begriffsklärungshinweis|ébauche|à\ssourcer
    |réf|stub|.*[\s-]stub$|commons|commonscat|commons\scategory|wikisource|wikiquote|wiktionary|wikivoyage|wikidata
    |wikispecies|sister|interwiki|official\swebsite|imdb|find\sa\sgrave|external|curlie|defaultsort|defaultsort:.*
    |displaytitle.*|italic\stitle|italic|lowercase|title\smissing|toc|compact\stoc|anchor|anker|ancre|coord
    |coordinates|koordinate|location|location\smap|maplink|mapframe|osm|graph|chart|image|multiple\simage|gallery
    |css|file|listen|audio|pronunciation|ipac|flagicon|flagdeco|flag\sicon|fb$|infobox.*|.*\sinfobox|s-|start\sbox
    |end\sbox|succession\sbox|end$|start$|col-|columns|div\scol|div\scol\send|colbegin|colend|col\s|clear
    |portal\sbar|subject\sbar|bots|nobots|engvar|family\stree|chart\stop|tree|weather\sbox|climate
    |historical\spopulations|us\scensus|football\sbox|footballbox|sports?table|season|tracklist|track\slisting
    |extra\smusicicon|certification|album\s(?:chart|ratings?)|singlechart|single\schart|albumchart|collapsible
    |hidden|end\s|featured|protected|cat\s|category|dmbox|dabnav|disambig|disambiguation|dab$|hndis|geodis|surname
    |set\sindex|taxonbar|medical|esoteric|refnec|esd|cr$|archives?$|cleanup.*|notetag|ref\s|ref$)""",
    re.VERBOSE,
)


def shown(call: Call) -> str | None:
    """The text that a template shows: empty if it is one without running text, None if that isn't known."""
    found = BY_LANGUAGE.get((call.language, call.name)) or TABLE.get(call.name)
    if found is None and call.name.startswith("lang-"):
        found = _language
    if found is None and call.name.startswith("ipa-"):
        found = _around("[", "]")
    if found is not None:
        return found(call)
    return "" if SILENT.match(call.name) else None
