"""Names that a secret is assigned to, compiled: `api_key = …`, `password: …`, `<token>…`, `--token …`, `-u user:…`.

The result is a superset: a name shares three letters in a row with a label of secrets, or has letters beyond ASCII, and
the value looks long enough. Regular expressions in `assigned.py` read the labels themselves.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from storage.shards.arrays import Bool

WORD, DIGIT, HEX, STOP, LETTER = 1, 2, 4, 8, 16
LONGEST_NAME = 48  # bytes of a name that a secret is assigned to
SHORTEST_SECRET = 8  # bytes
LONGEST_VALUE = 200  # bytes of a value to read
# Three letters of every name: key, token, secret, password, pwd, auth, credential, sig, session, sid, Kennwort,
# contrasena, clave, senha, wachtwoord, haslo and heslo, losenord, adgangskode, salasana, jelszo, sifre, parola, sandi
HINTS = (
    "key",
    "tok",
    "sec",
    "pas",
    "pwd",
    "aut",
    "cre",
    "sig",
    "ses",
    "sid",
    "nwo",
    "ase",
    "lav",
    "nha",
    "htw",
    "slo",
    "eno",
    "gsk",
    "asa",
    "lsz",
    "fre",
    "aro",
    "ndi",
)


def _hinted() -> Bool:
    hinted = np.zeros(1 << 15, np.bool_)
    for a, b, c in (map(ord, hint) for hint in HINTS):
        hinted[(a & 31) << 10 | (b & 31) << 5 | c & 31] = True
    return hinted


HINTED = _hinted()  # by the low five bits of each letter, its place in the alphabet


@njit(cache=True, nogil=True)
def assignment(data, begin, i, end, classes):
    """(characters from the name to the sign, characters from after the sign to the end of the value) if the sign at `i`
    may assign a secret, otherwise zeros.

    A sign is `=`, a colon (full-width, too), a comma after a quote, or the end of a tag, which the scan ensures. The
    value has a digit and at least SHORTEST_SECRET bytes without white space. All bytes between are ASCII.
    """
    width = 3 if data[i] == 0xEF else 1
    j = i - 1
    while j > begin and i - j <= 3 and data[j] == 32:
        j -= 1
    while j > begin and i - j <= 6 and (data[j] == 34 or data[j] == 39 or data[j] == 92 or data[j] == 93):
        j -= 1  # a quote, escaped or not, or a bracket
    # "The password is: …"
    if data[i] == 58 and j == i - 1 and j - 3 > begin and data[j] | 32 == 115 and data[j - 1] | 32 == 105:
        j -= 3 if data[j - 2] == 32 else 0
    last = j
    hinted = False
    between = i - 1 - last  # characters between the name and the sign
    while j >= begin and last - j < LONGEST_NAME:
        b = data[j]
        if b >= 128:
            hinted = True
        elif not classes[b] & WORD and b != 45 and b != 46:
            break
        between += (b & 0xC0) != 0x80
        if not hinted and last - j >= 2:
            hinted = HINTED[(np.int64(b) & 31) << 10 | (np.int64(data[j + 1]) & 31) << 5 | np.int64(data[j + 2]) & 31]
        j -= 1
    if not hinted:
        return 0, 0
    first = i + width
    j = first
    while j < end and j - i <= 2 and (data[j] == 61 or data[j] == 62):  # ==, => and :=
        j += 1
    for _ in range(3):  # white space, a quote, a scheme such as "Bearer" before the value
        while (
            j < end
            and j - first <= 23
            and (data[j] == 32 or data[j] == 9 or data[j] == 34 or data[j] == 39 or data[j] == 92)
        ):
            j += 1
        value = j
        j, digits = _value(data, value, end, classes)
        if j - value >= SHORTEST_SECRET and digits:
            return between, j - first
        if j - value > 9 or j == value:
            return 0, 0
    return 0, 0


@njit(cache=True, nogil=True)
def flag(data, begin, i, end, classes):
    """The number of bytes, all ASCII, of a command's flag and its secret that may begin with the hyphen at `i`, or 0.

    Forms are `--token VALUE`, `-pVALUE`, `-p VALUE`, `-u USER:VALUE` and `--user=USER:VALUE`.
    """
    if i + 2 >= end or not classes[data[i + 1]] & LETTER:
        return 0
    if i > begin and (classes[data[i - 1]] & WORD or data[i - 1] >= 128):
        return 0
    j = i + 1
    hinted = False
    while j < end and j - i <= LONGEST_NAME and (classes[data[j]] & WORD or data[j] == 45):
        if j - i > 2 and not hinted:
            a, b, c = np.int64(data[j - 2]), np.int64(data[j - 1]), np.int64(data[j])
            hinted = HINTED[(a & 31) << 10 | (b & 31) << 5 | c & 31]
        j += 1
    named = j
    if j < end and (data[j] == 32 or data[j] == 61):
        user = data[i + 1] == 117 and (j - i == 2 or (j - i == 5 and data[i + 2] == 115))
        spaced = data[j] == 32
        while j < end and j - named < 3 and data[j] == 32:
            j += 1
        j += j == named
        while j < end and j - named < 6 and (data[j] == 34 or data[j] == 39 or data[j] == 92):
            j += 1
        value = j
        j, digits = _value(data, value, end, classes)
        if user:
            for k in range(value, j):
                if data[k] == 58:
                    return j - i
        elif hinted and spaced and digits and j - value >= SHORTEST_SECRET:
            return j - i
    if data[i + 1] == 112 and i > begin and data[i - 1] == 32:
        value = i + 2
        while value < end and value - i < 5 and data[value] == 32:
            value += 1
        value += value < end and (data[value] == 34 or data[value] == 39)
        j, digits = _value(data, value, end, classes)
        if digits and j - value >= SHORTEST_SECRET:
            return j - i
    return 0


@njit(cache=True, nogil=True)
def _value(data, i, end, classes):
    """(end, digits) of the run from `i` on without white space and quotes, except escaped double quotes after a sign,
    up to LONGEST_VALUE bytes."""
    j = i
    digits = 0
    while (
        j < end
        and j - i < LONGEST_VALUE
        and 32 < data[j] < 127
        and data[j] != 39
        and data[j] != 96
        and (data[j] != 34 or (j - i > 1 and data[j - 1] == 92))
    ):
        digits += (classes[data[j]] & DIGIT) != 0
        j += 1
    return j, digits
