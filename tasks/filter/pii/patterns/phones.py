"""Telephone numbers of all countries: digits with evidence, checked against the numbering plans of `phonenumbers`.

Presidio's recogniser tries the plans of some regions on every digit of a window: it misses national numbers of all
other regions, and took nine tenths of the time of the whole search. Here a candidate is cut out first, and needs one of

- `+` or an international prefix, and a number that exists in that country's plan
- a word beside it that identifies it, in one of twenty languages
- the punctuation of North American numbers, or a trunk prefix and the very groups in which a plan writes its numbers
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tasks.filter.pii.findings import Finding
from tasks.filter.pii.patterns.plausible import continues

if TYPE_CHECKING:
    from phonenumbers import PhoneNumber

Span = tuple[int, int]

VALID, SAID, POSSIBLE, FORM = 0.75, 0.6, 0.45, 0.4  # scores by evidence
NEAR = 30  # characters before a number that must include the word
_SHORTEST, _SHORTEST_SAID, _LONGEST = 7, 6, 15  # digits. 15 is the maximum of ITU-T E.164
_EXTENSION = re.compile(r" ?(?:x|ext\.?|extension|Durchwahl|poste|доб\.?)[ :]?\d{1,7}(?![A-Za-z0-9_])", re.IGNORECASE)

# A word that means a telephone, and one that may
_STRONG = (
    r"\b(?:tel[ée]?|tele?phones?|phones?|fax|telefax|faks|hotline|whats ?app|mobile (?:phone|number)|cell ?phones?"
    r"|t[ée]l[ée]phones?|tel[eé]f\w*|tlf|tfno|puh\w*|handy\w*|rufnummer|m[óo]vil|celular|telemóvel|cellulare|gsm|sms"
    r"|komórk\w+|mobilnummer|mobilní|mobiltelefon|điện thoại|mobiltel\w*|sími|τηλ\w*|тел|телефон\w*|факс"
    r"|phone_?(?:number|no)?|answering at|reach (?:me|us|him|her|them|you)(?: (?:at|on|under))?"
    r"|call (?:me|us|him|her|them) (?:at|on)|appelez(?: le| au)|ll[aá]m[ae]\w*(?: al)|ligue(?: para)|chiama\w*(?: al)"
    r"|позвон\w*(?: по номеру)?|zadzwo\w+|zavolejte|soittakaa|anrufen unter)\b"
    r"|電話|电话|手机|手機|携帯|ファックス|전화|휴대폰|هاتف|جوال|تلفن|טלפון|फ़ोन|फोन|मोबाइल|โทร"
)
_WEAK = (
    r"\b(?:call|cell|mobile|mobil|portable|ring|text (?:me|us)|dial|contact"
    r"|(?:my|your|his|her|our|their|new) (?:\w+ )?number(?: is| was)?|appele[rz]|appelle|joindre|joignable"
    r"|num[ée]ro|n[úu]mero|nummer|numer telefonu|anrufen|ruf\w*|erreich\w*|bel|bellen|dzwoni\w+|ara(?:yın|yabil\w*)?"
    r"|звон\w*|номер\w*|моб|contatt\w*|zavol\w*|volej\w*|hívj\w*|soita\w*|liên hệ|gọi|hubungi|telepon|piga|numaram)\b"
    r"|致电|联系|聯繫|連絡|연락|اتصل|رقم|कॉल|נייד"
)
_SAYS = re.compile(rf"(?P<strong>{_STRONG})|(?P<weak>{_WEAK})", re.IGNORECASE)
_SAYS_AFTER = re.compile(
    r"[ \-(,]{0,3}(?:office|fax|mobile|mobil|cell|home|work|tel|phone|voice|handy|móvil|bureau|domicile)\b"
    r"(?![-_]\w)",
    re.IGNORECASE,
)
_SAYS_OF_IT = re.compile(  # 0171 2345678 ist meine Handynummer
    r" (?:is|ist|est|es|è|é|jest|är|er) (?:the|my|your|his|her|our|their|(?:m|d|s)eine?|unsere?|ihre?|mon|notre|mi"
    r"|il mio|meu|mój|min|mitt)"
    r" (?:new |neue )?(?:handy\w*|(?:tele|mobile |cell ?)?phone|telefon\w*|tel[ée]\w*|rufnummer|mobil\w*|cell\w*|móvil"
    r"|portable|fax)\b",
    re.IGNORECASE,
)
_ALSO = re.compile(
    r" {0,2}(?:[,;/|]| (?:or|oder|ou|o|of|eller|lub|или|and|und|et|y|e|en|och|og|i|и)) {1,2}", re.IGNORECASE
)
_DIGIT_BEFORE_BREAK = 6  # digits after which a dash, slash or bracket with spaces around it ends a number
_BREAK = re.compile(r" {2,}|[-./]{2,}|\)? ?[-/] | [-/]|[ /,]*\((?!0\))")
_DATE = re.compile(
    r"(?:1[5-9]|20)\d\d[-/. ](?:0?[1-9]|1[0-2])[-/. ]\d{1,2}(?:\D.*)?"
    r"|\d{1,2}[-/. ]\d{1,2}[-/. ](?:1[3-9]|2[05])\d\d(?:\D.*)?"  # Hijri and Buddhist years too
    r"|(?:1[5-9]|20)\d\d ?[-/ ] ?(?:1[5-9]|20)\d\d(?:\D.*)?|(?:19|20)\d{6}(?:[-. ]?\d{4,6})?|97[89](?:[- ]?\d){10}"
)
_DECIMAL = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|\d+\.\d+|\d+(?: \d{3})+\.\d+")
# The end of a tag, or bold in Markdown, after which a number may begin
_MARKUP = re.compile(r"(?:(?:[A-Za-z\"'/]|[hH]\d)>|\*\*)\Z")
# Reserved for films and books: in North America (and so for our surrogates), and by Ofcom for the United Kingdom
_FICTION = re.compile(r"555[-. )]{0,2}01\d\d\Z")
_DRAMA = re.compile(
    r"(?:(?:00)?440?|0)"
    r"(?:1632960|2079460|(?:113|114|115|116|117|118|121|131|141|151|161)4960|1914980|2890180|2896496|2920180|3069990"
    r"|7700900|8081570|9098790)\d{3}"
)
# Words right before a number of another kind. The last ones are common words or endings in lower case
_OTHERWISE = re.compile(
    r"\b(?i:(?:order|invoice|item|catalog(?:ue)?|product|case|ticket|account|acct\.?|policy|customer|member(?:ship)?|patent"
    r"|tracking|licen[cs]e|registration|reference|confirmation)[ .]{0,2}(?:no|nr|num|number|code|id|#|№)"
    r"|(?:part|serial|model|sku|s/n|p/n|ssn|isbn|(?<!caller )id)(?:[ .]{0,2}(?:no|nr|num|number|code|#|№))?"
    r"|social insurance(?: number)?)[ .:#=№\-]{0,4}\Z"
    r"|\b(?:SIN|REF|PN|SN)[ .:#=№\-]{0,4}\Z"
)
# Thousands, and words that count them. A number of the sales department may begin with three digits
_THOUSANDS = re.compile(r"[1-9]\d{0,2}([ .])\d{3}(?:\1\d{3})*")
_MONEY = r"[$€£¥₽]|(?:EUR|USD|GBP|CHF|JPY|CNY|RUB|PLN|INR|SEK|NOK|DKK|CZK|BRL|TRY|CAD|AUD)\b"
_UNIT = re.compile(
    rf" ?(?:{_MONEY}|(?i:(?:euros?|dollars?|pounds?|units?|people|persons?|users?|customers?|subscribers?|inhabitants"
    r"|households|mil(?:lion|liard)s?|billions?|mln|mio|stück|einwohner|personen|personnes|habitante?s|unidades|шт|руб|чел\w*)\b))"
)
_PRICED = re.compile(rf"(?<!\w)(?:{_MONEY}) ?\Z")
_COUNTED = re.compile(
    r"\b(?:sales|revenues?|turnover|lines|subscribers|subscriptions|users|units|shipments|number of)\b[^\d\n]*\Z",
    re.IGNORECASE,
)
_BANDS = re.compile(
    r"(?:(?:380|410|450|480|700|710|750|800|810|850|900|1500|1700|1800|1900|2000|2100|2300|2500|2600|3500)(?:\D+|\Z)){2,}"
)  # MHz
_LIST = re.compile(r"\d{3,4}(?:/\d{3,4}){2,}")
_PAIRS = re.compile(r"\d\d(?: \d\d){2,}")
_NEXT_ROW = re.compile(r"[ \t]*\r?\n[ \t]*[1-9]\d(?: \d\d){2}")
_EITHER = re.compile(r"\((\+\d{1,3}) ?(?:or|oder|ou|o|/) ?0\)(.+)")  # (+353 or 0)86 854 9268
_AREA = re.compile(r"\+\d{1,3}[ \-]?(?:\(0\)[ \-]?)?\d{2,5}|\(?0\d{1,5}\)?")
_BEHIND_MAIL = re.compile(r"@[\w.\-]+\.[A-Za-z]{2,}[>)\]]?[/,;|:]?\Z")
_SLASHED = re.compile(r"(0[1-9]\d{1,4}) ?/ ?\d{2,4}(?: \d{2,4}){1,4}")
_SLASHING = ("DE", "AT", "CH", "BE", "NL", "HR", "RS", "SI", "BA", "RO", "BG")
_NANP = re.compile(
    r"(?:(?:\+?1|001|011 1)[-. ]?)?(?:\(\d{3}\) ?\d{3}[-. ]\d{4}|\d{3}([-.])\d{3}\1\d{4})"
    r"|1[- .]\d{3}[- .]\d{3}[- .]\d{4}"
    r"|00\d(?:-\d{3,4}){3}"
)
_TRUNK = re.compile(
    r"\((?!(?:1[5-9]|20)\d\d\))0?\d{1,5}\) ?\d{2,5}(?:[- ]\d{2,5}){1,3}|0\d{1,4}(?: \d{2,5}){1,5}"
    r"|0\d{1,4}(?:[- ]\d{2,4}){2,4}"
    r"|0[1-9](?:\.\d\d){4}|0[1-9]\d{0,3}[-/] ?\d{5,8}|8 ?\(\d{3,5}\) ?\d{2,3}-\d\d-\d\d"
)
# Regions whose plans are tried without a country code: those with a trunk prefix, by population
_REGIONS = (
    "IN", "ID", "PK", "NG", "BR", "BD", "RU", "JP", "PH", "EG", "VN", "TR", "IR", "DE", "TH", "GB", "FR", "ZA", "IT",
    "TZ", "KE", "KR", "CO", "UG", "AR", "DZ", "UA", "MA", "SA", "MY", "PE", "AU", "NL", "BE", "SE", "CH", "AT", "RO",
    "IL", "FI", "IE", "NZ", "TW", "CN", "HR", "RS", "BG", "SK", "SI", "LT", "AE", "BA", "GH", "ET", "LK", "KH",
)  # fmt: skip


def find_phones(text: str, spans: Iterable[Span]) -> Iterator[Finding]:
    """Yield the telephone numbers among runs of digits with separators."""
    previous: Finding | None = None
    for start, end in spans:
        if (text[start - 1 : start] == "." or continues(text, start - 1)) and text[start:end].isdigit():
            continue  # most runs of digits in code
        for first, last in _parts(text, start, end):
            finding = _judge(text, first, last, previous)
            if finding is not None:
                yield finding
                previous = finding


def _parts(text: str, start: int, end: int) -> Iterator[Span]:
    """Cut a run of digits into possible numbers, with `+` and bracket before."""
    digits, first = 0, start
    last = start
    for run in re.finditer(r"\d+", text[start:end]) if end - start > 15 or not text[start:end].isdigit() else ():
        gap = text[last : start + run.start()]
        if gap == " / " and _AREA.fullmatch(text, _opened(text, first), last):
            pass  # 030 / 20 93 70 00
        elif digits >= _DIGIT_BEFORE_BREAK and _BREAK.fullmatch(gap):
            yield _opened(text, first), last
            digits, first = 0, start + run.start()
        elif gap.count(" ") > 1 and "(" not in gap and digits:
            digits, first = 0, start + run.start()
        digits += run.end() - run.start()
        last = start + run.end()
    yield _opened(text, first), end


def _opened(text: str, first: int) -> int:
    """The start of the number whose first digit is at `first`, which includes a bracket and a +."""
    while first and text[first - 1] in "(+":
        first -= 1
    return first


def _judge(text: str, start: int, end: int, previous: Finding | None) -> Finding | None:
    value = text[start:end]
    count = sum(map(str.isdigit, value))
    if count < _SHORTEST_SAID or count > 2 * _LONGEST:
        return None
    if _FICTION.search(value):
        return None
    if "0)" in value[:8]:
        opened = text.rfind("(", max(start - 14, 0), start + 1)
        either = _EITHER.fullmatch(text, opened, end) if opened >= 0 else None
        if either is not None and _valid(either[1] + either[2], None):
            return Finding("PHONE_NUMBER", opened, end, VALID)
    extension = _EXTENSION.match(text, end)
    beyond = extension.end() if extension else end
    before, after = text[max(start - NEAR, 0) : start], text[beyond : beyond + NEAR]
    formed = value[0] == "+" or _NANP.fullmatch(value) is not None
    said = _said(before, after) or _said_of(text, previous, start, end)
    if re.match(r"(?a:[.:/\-_]?\w)|,\d|[%°@]", after) and not (
        _SAYS_AFTER.match(after)
        or (formed and after[0] == ",")
        or (said and value[0] == "+" and re.match(r"\.[A-Z]", after))  # a sentence without a space before it
    ):
        return None
    if value.startswith("("):
        if ")" not in value:
            value, start = value[1:], start + 1
    elif value.count("(") != value.count(")"):
        return None
    if not _may_begin(text, before, start, formed, bool(said)):
        return None
    number = _international(value) or _national(value, count, said)
    if (
        number is None
        or _is_other(value, before)
        or _is_counted(value, before, after)
        or (said != "strong" and _is_row(text, value, end))
    ):
        return None
    score, length = number
    end = start + length
    return Finding("PHONE_NUMBER", start, beyond if length == len(value) else end, score)


def _may_begin(text: str, before: str, start: int, formed: bool, said: bool) -> bool:
    """Whether a number may begin after the text before it."""
    if not re.search(r"[\w@#$€£]\Z" if said else r"[\w/@.\-$€£#&%*^~<>\\,=\[]\Z", before, re.ASCII):
        return True
    if before.endswith(",") and (formed or not before[-2:-1].isdigit()):  # comma-separated values
        return True
    return bool(_MARKUP.search(before) or _BEHIND_MAIL.search(text, max(start - 80, 0), start))


def _is_other(value: str, before: str) -> bool:
    """Whether a number is reserved for films, a list of radio bands, or of another kind by the words before it."""
    if _BANDS.fullmatch(value) or _DRAMA.fullmatch(re.sub(r"\D", "", value)):
        return True
    return value[0] != "+" and _OTHERWISE.search(before) is not None


def _is_counted(value: str, before: str, after: str) -> bool:
    """Whether a number is an amount: in thousands, of money or of things."""
    if not _THOUSANDS.fullmatch(value):
        return False
    if _UNIT.match(after) or _PRICED.search(before):
        return True
    return not value[:3].isdigit() and _COUNTED.search(before) is not None


def _is_row(text: str, value: str, end: int) -> bool:
    """Whether digits in equal groups are several numbers: separated by slashes, in a table, or in ascending order."""
    if _LIST.fullmatch(value):
        return True
    if not _PAIRS.fullmatch(value):
        return False
    pairs = value.split(" ")
    return len(pairs) > 5 or pairs == sorted(pairs) or _NEXT_ROW.match(text, end) is not None


def _said(before: str, after: str) -> str:
    """How strongly a word beside a number identifies it as a telephone number: "strong", "weak" or ""."""
    strength = ""
    for match in _SAYS.finditer(before):
        between = before[match.end() :]
        if len(re.findall(r"\d", between)) > 15:
            continue
        strength = "strong" if match["strong"] or strength == "strong" else "weak"
    return "strong" if not strength and (_SAYS_AFTER.match(after) or _SAYS_OF_IT.match(after)) else strength


def _said_of(text: str, previous: Finding | None, start: int, end: int) -> str:
    """The same for a number that follows another one with such a word: `Tel. … or … or …`."""
    if previous is None or previous.score != SAID or not _ALSO.fullmatch(text, previous.end, start):
        return ""
    forms = (re.sub(r"\d", "0", text[first:last]) for first, last in ((previous.start, previous.end), (start, end)))
    return "weak" if len(set(forms)) == 1 else ""


def _international(value: str) -> tuple[float, int] | None:
    """(score, length) of a number with + or an international prefix, or None."""
    if value[0] == "+":
        dialled = value
    elif match := re.match(r"(?:00|011[ -])(?=[1-9])", value):
        dialled = "+" + value[match.end() :]
        if " " not in value and "-" not in value:
            return None
    else:
        return None
    for length in _cuts(value):
        if _valid(dialled[: length - len(value) or None], None):
            return VALID, length
    digits = re.sub(r"\D", "", value)
    grouped = len(re.findall(r"\d+", value)) > 2
    return (
        (POSSIBLE, len(value)) if grouped and 9 <= len(digits) <= 13 and value[0] == "+" and digits[0] != "0" else None
    )


def _national(value: str, count: int, said: str) -> tuple[float, int] | None:
    if _DATE.fullmatch(value) or (said != "strong" and _DECIMAL.fullmatch(value)):
        return None
    if said and count <= _LONGEST:
        groups = re.findall(r"\d+", value)
        plain = len(groups) == 1
        shortest = _SHORTEST if plain or (said == "weak" and len(groups) < 3) else _SHORTEST_SAID
        if count >= shortest and (said == "strong" or not plain or value[0] == "0") and max(map(len, groups)) <= 12:
            return SAID, len(value)
    if _NANP.fullmatch(value):
        return FORM, len(value)
    slashed = _SLASHED.fullmatch(value)
    if slashed and count <= _LONGEST and _in_an_area(value, slashed[1]):
        return FORM, len(value)
    for length in _cuts(value):
        part = value[:length]
        if _TRUNK.fullmatch(part) and _SHORTEST < sum(map(str.isdigit, part)) <= _LONGEST and _in_a_plan(part):
            return FORM, length
    return None


def _cuts(value: str) -> Iterator[int]:
    """Yield the lengths of a value and of its beginnings that end with a group of digits, the longest first."""
    ends = [match.end() for match in re.finditer(r"\d+", value)]
    yield from reversed([end for end in ends[-5:] if sum(map(str.isdigit, value[:end])) >= _SHORTEST])


@functools.cache
def _library() -> Any:
    import phonenumbers  # its tables take 50 ms

    return phonenumbers


def _parsed(value: str, region: str | None) -> PhoneNumber | None:
    library = _library()
    try:
        return library.parse(value, region)
    except library.NumberParseException:
        return None


def _valid(value: str, region: str | None) -> bool:
    number = _parsed(value, region)
    return number is not None and _library().is_valid_number(number)


@functools.lru_cache(maxsize=4096)
def _in_a_plan(value: str) -> bool:
    """Whether a region's plan contains this number, and writes it in these groups."""
    groups = re.findall(r"\d+", value)
    library = _library()
    for region in _REGIONS:
        number = _parsed(value, region)
        if number is not None and library.is_valid_number_for_region(number, region):
            written = library.format_number(number, library.PhoneNumberFormat.NATIONAL)
            if re.findall(r"\d+", written) == groups:
                return True
    return False


@functools.lru_cache(maxsize=4096)
def _in_an_area(value: str, area: str) -> bool:
    """Whether the number and area are in the plan of a region that writes a slash after the area code."""
    library = _library()
    for region in _SLASHING:
        number = _parsed(value, region)
        if number is not None and library.is_valid_number_for_region(number, region):
            written = library.format_number(number, library.PhoneNumberFormat.NATIONAL)
            if re.findall(r"\d+", written)[0] == area:
                return True
    return False
