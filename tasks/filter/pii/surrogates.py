"""Surrogates: consistent values of the same kind and shape that nobody has, from ranges reserved for examples.

- e-mail: example.com, .net, .org (RFC 2606)
- telephone: 555-0100 to 555-0199 (reserved for fiction in the NANP), after a North American area code or digits
  outside all numbering plans
- IPv4 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24 (RFC 5737), IPv6 2001:db8::/32 (RFC 3849), MAC 00-00-5E-00-53-xx
  (RFC 7042)
- card: 4242 42…, which card processors accept only in test mode, with a wrong checksum, which real cards never have
- IBAN: country and form of the original, a bank code of zeros, and a valid checksum
- US social security number: area 9xx, which is never issued, with a group that tax numbers don't use

The same value gets the same surrogate in every document and every run with the same salt, so text stays coherent.
Ranges are small (100 telephone numbers, 762 IPv4 addresses), so different values may collide. Whoever knows the salt
can test guesses of a value.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterator

from tasks.filter.pii.fold import fold, spelled_plainly

FIRST = (
    "Alex",
    "Blake",
    "Casey",
    "Dana",
    "Eden",
    "Frances",
    "Gale",
    "Harper",
    "Indigo",
    "Jamie",
    "Kelly",
    "Lee",
    "Morgan",
    "Noel",
    "Parker",
    "Quinn",
    "Robin",
    "Sam",
    "Taylor",
    "Val",
)
LAST = (
    "Ashby",
    "Barton",
    "Calloway",
    "Dunmore",
    "Ellery",
    "Fairfax",
    "Garner",
    "Holloway",
    "Ingram",
    "Jarrow",
    "Kirby",
    "Langley",
    "Merrow",
    "Norwood",
    "Oakley",
    "Prescott",
    "Quimby",
    "Rowan",
    "Stanton",
    "Thorne",
)
_DOMAINS = ("com", "net", "org")
_NETWORKS = ("192.0.2", "198.51.100", "203.0.113")
_BANK_CODE = 8  # characters of an IBAN after its checksum that contain the bank's code in every country

Draw = Callable[[int], int]  # below → a number from 0 to below - 1


def surrogate(entity: str, value: str, salt: str) -> str | None:
    """The surrogate of `value`, or None for an entity without reserved values."""
    value = fold(value)
    make = _MAKERS.get(entity)
    return make(value, _drawing(entity, _normal(entity, value), salt)) if make else None


def _normal(entity: str, value: str) -> str:
    """The value in one spelling: without case, separators and the like."""
    if entity == "EMAIL_ADDRESS":
        return "".join(spelled_plainly(value).lower().split())
    if entity == "PERSON":
        return " ".join(value.lower().split())
    if entity == "IP_ADDRESS":
        return ipaddress.ip_interface(_address(value)).ip.compressed
    return re.sub(r"[\W_]", "", value).upper()


def _drawing(entity: str, value: str, salt: str) -> Draw:
    def numbers() -> Iterator[int]:
        key = hashlib.blake2b(salt.encode()).digest()
        counter = 0
        while True:
            block = hashlib.blake2b(f"{counter}\0{entity}\0{value}".encode(), key=key).digest()
            yield from (int.from_bytes(block[i : i + 8]) for i in range(0, len(block), 8))
            counter += 1

    stream = numbers()
    return lambda below: next(stream) % below


def _email(_: str, draw: Draw) -> str:
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    name = "".join(letters[draw(len(letters))] for _ in range(8))
    return f"{FIRST[draw(len(FIRST))].lower()}.{name}@example.{_DOMAINS[draw(3)]}"


def _phone(value: str, draw: Draw) -> str:
    parts = re.match(r"([^a-zA-Z]*)([^0-9]*)(.*)\Z", value, re.DOTALL)
    assert parts, "matches any text"
    called, mark, extension = parts.groups()
    count = len(re.findall(r"\d", called))
    area = f"{2 + draw(8)}{draw(100):02d}".replace("11", "12")  # 211, 311, … are services
    line = f"55501{draw(100):02d}"
    if called.lstrip().startswith("+"):
        before = ("1" + area).ljust(count - 7, "0")[: max(count - 7, 0)]
    else:
        before = ("1" + area if count > 10 else area)[: max(count - 7, 0)].rjust(count - 7, "0")
    return _reshaped(called, (before + line)[-count:]) + mark + _reshaped(extension, f"{draw(10**9):09d}" * 20)


def _address(value: str) -> str:
    return re.sub(r"%[^/]*", "", value)


def _ip(value: str, draw: Draw) -> str:
    address, slash, prefix = _address(value).partition("/")
    if ipaddress.ip_address(address).version == 4:
        new = f"{_NETWORKS[draw(3)]}.{1 + draw(254)}"
    else:
        new = f"2001:db8:{draw(65536):x}:{draw(65536):x}::{1 + draw(65535):x}"
    return new + slash + prefix


def _mac(value: str, draw: Draw) -> str:
    digits = f"00005e0053{draw(256):02x}"
    return _reshaped(value, digits if value.islower() else digits.upper(), r"[0-9A-Fa-f]")


def _card(value: str, draw: Draw) -> str:
    count = len(re.findall(r"\d", value))
    digits = "424242" + "".join(str(draw(10)) for _ in range(count - 7))
    doubled = (int(digit) * (2 - i % 2) for i, digit in enumerate(reversed(digits)))
    check = (1 + draw(9) - sum(number // 10 + number % 10 for number in doubled)) % 10
    return _reshaped(value, f"{digits}{check}")


def _iban(value: str, draw: Draw) -> str:
    plain = re.sub(r"[\W_]", "", value)
    country, account = plain[:2].upper(), ""
    for i, character in enumerate(plain[4:]):
        drawn = "0" if i < _BANK_CODE else str(draw(10))
        account += drawn if character.isdigit() else "X"
    number = int("".join(str(int(character, 36)) for character in f"{account}{country}00"))
    return _reshaped(value, f"{country}{98 - number % 97:02d}{account}", r"[0-9A-Za-z]")


def _ssn(value: str, draw: Draw) -> str:
    return _reshaped(value, f"9{draw(100):02d}{1 + draw(49):02d}{1 + draw(9999):04d}")


def _person(value: str, draw: Draw) -> str:
    first, last = FIRST[draw(len(FIRST))], LAST[draw(len(LAST))]
    name = f"{first} {last}" if len(value.split()) > 1 else first
    return name.lower() if value.islower() else name.upper() if value.isupper() and len(value) > 1 else name


def _reshaped(shape: str, characters: str, places: str = r"\d") -> str:
    """`shape` with its digits (or what matches `places`) replaced by `characters`, one by one."""
    fill = iter(characters)
    return re.sub(places, lambda _: next(fill), shape)


_MAKERS: dict[str, Callable[[str, Draw], str]] = {
    "EMAIL_ADDRESS": _email,
    "PHONE_NUMBER": _phone,
    "IP_ADDRESS": _ip,
    "MAC_ADDRESS": _mac,
    "CREDIT_CARD": _card,
    "IBAN_CODE": _iban,
    "US_SSN": _ssn,
    "PERSON": _person,
}
