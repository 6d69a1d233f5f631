"""The scan for candidates, compiled by numba: one pass over UTF-8 bytes that stops only where personal data can be.

Personal data with a fixed form contains a digit, an @, two colons or a PEM header, and a secret often follows a name
that identifies it (see `name_kernels.py`). Most bytes of a text are none of these: the pass looks up each byte in a
table and moves on. Where it stops, it looks at the surroundings, never further back than the current run of characters,
and never twice at one run, so it takes linear time for any input. It emits a superset, from which regular expressions
and Presidio's recognisers choose. The method is our own, the forms are Presidio's.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Bool, Int64, UInt8
from tasks.filter.pii.patterns.name_kernels import DIGIT, HEX, LETTER, STOP, WORD, assignment, flag

AT, DIGITS, DOTTED, COLONS, CODE, TOKEN, PEM, USERINFO, ASSIGNED, FLAG = range(10)  # kinds of candidates
FIELDS = 4  # document, kind, first character, character after the last

PHONE_DIGITS = 6  # minimum of a telephone number, card or national ID
SEPARATORS = 3  # maximum characters between two digits of a number
CODE_DIGITS = 4  # in a national ID that mixes digits and letters
CODE_LENGTH = 9
TOKEN_LENGTH = 16  # of the shortest key
LONGEST_ADDRESS = 64  # characters of an IPv6 address with prefix length or zone
LONGEST_USERINFO = 200  # bytes between the scheme of a URL and its @
# Other ways to write @ and the dot, in lower case
IN_WORDS, DOT, DECIMAL, HEXADECIMAL, ENTITY = (
    np.array([ord(letter) | 32 for letter in word], np.uint8) for word in ("at", "dot", "#64;", "#x40;", "commat;")
)

AFTER_SIGN = np.array([chr(code) in "aA 4#cC" for code in range(256)])


def _table() -> UInt8:
    table = np.zeros(256, np.uint8)
    for code in range(128):
        letter = chr(code)
        if letter.isalnum() or letter == "_":
            table[code] |= WORD
        if letter.isdigit():
            table[code] |= DIGIT | STOP
        if letter in "0123456789abcdefABCDEF":
            table[code] |= HEX
        if letter in "@:=B_-K,>%&([{<":
            table[code] |= STOP
        if letter.isalpha():
            table[code] |= LETTER
    table[0xEF] |= STOP  # the first byte of a full-width colon
    return table


CLASSES = _table()


@njit(cache=True, nogil=True)
def scan(data: UInt8, offsets: Int64, classes: UInt8, hits: Int64) -> int:
    """Write the candidates of D texts, text d at `data[offsets[d]:offsets[d + 1]]`, to `hits` (see FIELDS).

    Returns their number, at most one per two bytes plus a few. Positions are characters of the text.
    """
    count = 0
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        behind = 0  # continuation bytes up to i: byte i is character i - begin - behind
        # Ends of the last runs of each kind: a run is examined only at its first byte
        number_end = token_end = colons_end = letters_end = begin
        i = begin
        while i < end:
            b = data[i]
            behind += (b & 0xC0) == 0x80
            kind = classes[b]
            # Most bytes end here
            if kind & STOP:
                at = i - begin - behind
                if kind & DIGIT:
                    # Digits with separators: telephone and card numbers, national IDs
                    if i >= number_end:
                        number_end, digits, width = _number(data, i, end, classes)
                        if digits >= PHONE_DIGITS:
                            count = _emit(hits, count, d, DIGITS, at, at + width)
                    # Digits among letters and hyphens (IBANs, national IDs, keys), or a dotted IPv4 address
                    if i >= token_end:
                        first, token_end, dotted = _run(data, begin, i, end, classes)
                        count = _of_run(data, first, i, token_end, classes, hits, count, d, at - (i - first))
                        if dotted:
                            count = _emit(hits, count, d, DOTTED, at, at + dotted)
                elif b == 64:
                    has_user, has_password = _userinfo(data, begin, i)
                    if has_user or has_password:
                        count = _emit(hits, count, d, USERINFO, at, at + 1)
                    if not has_password and _is_address(data, begin, i, end, classes):
                        count = _emit(hits, count, d, AT, at, at + 1)
                elif b == 61 or b == 58 or b == 44 or b == 62 or b == 0xEF:
                    if b == 61 or b == 58 or _can_assign(data, begin, i, end, classes):
                        before, length = assignment(data, begin, i, end, classes)
                        if length:
                            count = _emit(hits, count, d, ASSIGNED, at - before, at + 1 + length)
                    if b == 58 and i >= colons_end and i + 1 < end:
                        first, colons_end, is_address = _colons(data, max(begin, colons_end), i, end, classes)
                        if is_address:
                            count = _emit(hits, count, d, COLONS, at - (i - first), at + colons_end - i)
                elif b == 37 or b == 38 or b == 40 or b == 60 or b == 91 or b == 123:
                    # Mostly brackets: `at` or a space must follow
                    if i > begin and i + 1 < end and AFTER_SIGN[data[i + 1]] and _is_spelled_at(data, i, end):
                        count = _emit(hits, count, d, AT, at, at + 1)
                elif b != 66:
                    if b == 45 and i + 1 < end and classes[data[i + 1]] & LETTER:
                        length = flag(data, begin, i, end, classes)
                        if length:
                            count = _emit(hits, count, d, FLAG, at, at + length)
                    # Keys of only letters, which a digit doesn't reveal: hf_, api_org_, glpat- and AKIA
                    if i >= letters_end and _is_prefix(data, begin, i, end):
                        first, letters_end, _ = _run(data, begin, i, end, classes)
                        if letters_end - first >= TOKEN_LENGTH and not _has_digit(data, first, letters_end, classes):
                            first_at = at - (i - first)
                            count = _emit(hits, count, d, TOKEN, first_at, first_at + letters_end - first)
                elif _is_pem(data, begin, i, end):
                    count = _emit(hits, count, d, PEM, at, at + 1)
            i += 1
    return count


@njit(cache=True, nogil=True)
def foldable(data: UInt8, offsets: Int64, classes: UInt8, marks: Bool) -> None:
    """Mark those of D texts that may contain a number in characters beyond ASCII: full-width forms, the digits of
    Arabic and Devanagari, or spaces and dashes beside a digit."""
    for d in range(len(offsets) - 1):
        begin, end = offsets[d], offsets[d + 1]
        marks[d] = False
        for i in range(begin, end - 1):
            if data[i] >= 0xC2 and _folds(data, begin, i, end, classes):
                marks[d] = True
                break


@njit(cache=True, nogil=True)
def _folds(data, begin, i, end, classes):
    a, b = data[i], data[i + 1]
    c = data[i + 2] if i + 2 < end else 0
    if a == 0xD9 or a == 0xDB:
        return 0xA0 <= b <= 0xA9 if a == 0xD9 else 0xB0 <= b <= 0xB9
    if a == 0xE0:
        return b == 0xA5 and 0xA6 <= c <= 0xAF
    if a == 0xEF:
        return b == 0xBC and (0x90 <= c <= 0x99 or c == 0xA0)  # 0 to 9, and @
    size = 2 if a == 0xC2 else 3
    space_or_dash = (
        (a == 0xC2 and b == 0xA0)
        or (a == 0xE3 and b == 0x80 and c == 0x80)
        or (a == 0xE2 and b == 0x88 and c == 0x92)
        or (a == 0xE2 and b == 0x80 and (0x80 <= c <= 0x8A or 0x90 <= c <= 0x95 or c == 0xAF))
    )
    after_digit = i > begin and classes[data[i - 1]] & DIGIT
    return space_or_dash and (after_digit or (i + size < end and classes[data[i + size]] & DIGIT))


@njit(cache=True, nogil=True, inline="always")
def _emit(hits, count, document, kind, first, last):
    hits[count, 0] = document
    hits[count, 1] = kind
    hits[count, 2] = first
    hits[count, 3] = last
    return count + 1


@njit(cache=True, nogil=True)
def _number(data, i, end, classes):
    """(end, digits, characters) of the digits from `i` on, with at most SEPARATORS separators between two of them."""
    digits = gap = 0
    first = last = i  # up to the last digit: trailing separators don't belong to the number
    while i < end and gap <= SEPARATORS:
        b = data[i]
        if classes[b] & DIGIT:
            digits += 1
            gap = 0
            last = i + 1
        elif b == 32 or b == 40 or b == 41 or b == 46 or b == 45 or b == 47:  # " ().-/"
            gap += 1
        else:
            break
        i += 1
    return last, digits, last - first


@njit(cache=True, nogil=True)
def _run(data, begin, i, end, classes):
    """(start, end, dotted): the run of word characters and hyphens around `i`, and the length of an IPv4 address at `i`
    or 0."""
    first = i
    while first > begin and (classes[data[first - 1]] & WORD or data[first - 1] == 45):
        first -= 1
    last = i
    while last < end and (classes[data[last]] & WORD or data[last] == 45):
        last += 1
    # Four groups of one to three digits with dots between
    dotted = 0
    j = i
    for part in range(4):
        start = j
        while j < end and j - start < 4 and classes[data[j]] & DIGIT:
            j += 1
        if j == start or j - start > 3:
            break
        if part == 3:
            dotted = j - i
        elif j < end and data[j] == 46:
            j += 1
        else:
            break
    return first, last, dotted


@njit(cache=True, nogil=True)
def _of_run(data, first, digit, last, classes, hits, count, document, at):
    """Emit a run of letters and digits, with its first digit at `digit`, if it may be a national ID, an IBAN or a key.
    Returns the new count."""
    length = last - first
    if length < CODE_DIGITS:
        return count
    digits = letters = 0
    for i in range(first, last):
        digits += (classes[data[i]] & DIGIT) != 0
        letters += (classes[data[i]] & LETTER) != 0
    # Runs of only digits are found as numbers
    if letters == 0:
        return count
    if length >= TOKEN_LENGTH:
        count = _emit(hits, count, document, TOKEN, at, at + length)
    # Two letters for the country, two digits for the checksum, perhaps after a hyphen or underscore
    iban = (
        digit - first >= 2
        and classes[data[digit - 2]] & LETTER
        and classes[data[digit - 1]] & LETTER
        and digit + 1 < last
        and classes[data[digit + 1]] & DIGIT
        and (digit - 2 == first or data[digit - 3] == 45 or data[digit - 3] == 95)
    )
    if iban or (length >= CODE_LENGTH and digits >= CODE_DIGITS):
        count = _emit(hits, count, document, CODE, at, at + length)
    return count


@njit(cache=True, nogil=True)
def _is_address(data, begin, i, end, classes):
    """Whether the @ at `i` follows a character, and a word, a dot (or `dot`) and another word follow it."""
    if i == begin or i + 1 == end or data[i - 1] <= 32:
        return False
    j = i + 1
    while j < end and j - i < 256 and (classes[data[j]] & WORD or data[j] >= 128 or data[j] == 45):
        j += 1
    if j == i + 1 or j + 1 >= end:
        return False
    if data[j] == 46:
        return classes[data[j + 1]] & WORD != 0 or data[j + 1] >= 128
    if data[j] == 38:  # &#46; or &period;
        return data[j + 1] == 35 or data[j + 1] | 32 == 112
    if data[j] != 32:
        return _is_bracketed(data, j, end, DOT)
    return _is_bracketed(data, j + 1, end, DOT) or (
        _is_word(data, j + 1, end, DOT) and j + 4 < end and data[j + 4] == 32
    )


@njit(cache=True, nogil=True, inline="always")
def _can_assign(data, begin, i, end, classes):
    """Whether the comma at `i` follows a quote, the > follows a word, or the byte 0xEF begins a full-width colon."""
    if data[i] == 0xEF:
        return i + 2 < end and data[i + 1] == 0xBC and data[i + 2] == 0x9A
    if data[i] == 44:
        return i > begin and (data[i - 1] == 34 or data[i - 1] == 39)
    return i > begin and classes[data[i - 1]] & WORD != 0


@njit(cache=True, nogil=True)
def _is_spelled_at(data, i, end):
    """Whether another way to write @ is at `i`: `%40`, `&#64;`, `&#x40;`, `&commat;`, `[at]` and the like."""
    if data[i] == 37:
        return i + 2 < end and data[i + 1] == 52 and data[i + 2] == 48
    if data[i] == 38:
        return (
            _is_word(data, i + 1, end, DECIMAL)
            or _is_word(data, i + 1, end, HEXADECIMAL)
            or _is_word(data, i + 1, end, ENTITY)
        )
    return _is_bracketed(data, i, end, IN_WORDS)


@njit(cache=True, nogil=True)
def _is_bracketed(data, i, end, word):
    """Whether an opening bracket at `i`, the word and a closing bracket follow each other, with up to one space."""
    if data[i] != 40 and data[i] != 60 and data[i] != 91 and data[i] != 123:
        return False
    j = i + 1
    j += j < end and data[j] == 32
    if not _is_word(data, j, end, word):
        return False
    j += len(word)
    j += j < end and data[j] == 32
    return j < end and (data[j] == 41 or data[j] == 62 or data[j] == 93 or data[j] == 125)


@njit(cache=True, nogil=True)
def _is_word(data, i, end, word):
    """Whether the word is at `i`, in upper or lower case."""
    if i + len(word) > end:
        return False
    same = 0
    for k in range(len(word)):
        same += (data[i + k] | 32) == word[k]
    return same == len(word)


@njit(cache=True, nogil=True)
def _colons(data, begin, i, end, classes):
    """(start, end, whether it may be an IPv6 or MAC address) of the run of hex digits and colons around `i`."""
    first = i
    while first > begin and i - first < LONGEST_ADDRESS and classes[data[first - 1]] & HEX:
        first -= 1
    last = i
    colons = doubled = 0
    while last < end and (classes[data[last]] & HEX or data[last] == 58 or data[last] == 46):
        if data[last] == 58:
            colons += 1
            doubled += last > i and data[last - 1] == 58
        last += 1
    # Not an address: part of a word, too long or short, or with neither `::` nor the five colons of a MAC address
    inside = (first > begin and classes[data[first - 1]] & WORD) or (last < end and classes[data[last]] & WORD)
    is_address = not inside and last - first <= LONGEST_ADDRESS and last - first > 2 and (doubled == 1 or colons >= 5)
    return first, last, is_address


@njit(cache=True, nogil=True)
def _userinfo(data, begin, i):
    """(has_user, has_password): whether the @ at `i` ends a URL's user as long as a key, or its `user:password`.
    Neither contains another @, so that a row of @ isn't a row of candidates."""
    j = i - 1
    lowest = max(begin + 3, i - LONGEST_USERINFO)
    colon = False
    while j >= lowest:
        b = data[j]
        if b <= 32 or b == 34 or b == 60 or b == 62 or b == 64 or b == 96:  # white space or one of "<>@`
            return False, False
        if b == 47:
            in_url = data[j - 1] == 47 and data[j - 2] == 58
            return in_url and not colon and i - j > TOKEN_LENGTH, in_url and colon
        colon |= b == 58
        j -= 1
    return False, False


@njit(cache=True, nogil=True)
def _is_prefix(data, begin, i, end):
    """Whether the byte at `i` ends `hf_`, `org_` or `pat-`, or is the K of `AKIA`."""
    if data[i] == 75:
        return i > begin and i + 2 < end and data[i - 1] == 65 and data[i + 1] == 73 and data[i + 2] == 65
    if i < begin + 2:
        return False
    a, b = data[i - 2], data[i - 1]
    if data[i] == 95:
        return (a == 104 and b == 102) or (a == 114 and b == 103)
    return a == 97 and b == 116


@njit(cache=True, nogil=True)
def _has_digit(data, first, last, classes):
    digits = 0
    for i in range(first, last):
        digits += (classes[data[i]] & DIGIT) != 0
    return digits > 0


@njit(cache=True, nogil=True)
def _is_pem(data, begin, i, end):
    """Whether the B at `i` is that of "-----BEGIN "."""
    return (
        i - begin >= 5
        and i + 5 < end
        and data[i - 1] == 45
        and data[i - 5] == 45
        and data[i + 1] == 69
        and data[i + 2] == 71
        and data[i + 3] == 73
        and data[i + 4] == 78
        and data[i + 5] == 32
    )
