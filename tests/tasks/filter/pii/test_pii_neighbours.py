"""Personal data of a fixed form beside all possible neighbours: each is found exactly, or not at all if its neighbour
makes it another value. And the IBANs of every country."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Mapping

import pyarrow as pa
import pytest

from tasks.filter.pii.config import PATTERN_ENTITIES, PiiConfig
from tasks.filter.pii.measure import measure_pii
from tasks.filter.pii.patterns.ibans import FORMS, is_valid
from tasks.filter.pii_metadata.measure import MetadataConfig, measure_metadata

NEIGHBOURS: Mapping[str, tuple[str, str]] = {
    "word": ("number ", " thanks"),
    "four letters": ("bank ", " bank"),
    "comma": ("Doe,", ",Paris"),
    "bracket": ("(", ")"),
    "quote": ('"', '"'),
    "newline": ("a\n", "\nb"),
    "Han": ("汉字", "汉字"),
    "Kana": ("です", "です"),
    "Hangul": ("은", "입니다"),
    "Thai": ("ที่", "ครับ"),
    "slash": ("a/", "/a"),
    "underscore": ("a_", "_a"),
    "digit": ("7", "7"),
    "end": ("", ""),
}
# Neighbours that make a value another one, or none. A number, code or key that an underscore or digit continues is an
# identifier. A slash makes it a part of a path, a fraction or a date
CONTINUED = {"underscore": "both", "digit": "both"}
IN_PATH = {**CONTINUED, "slash": "both"}
OF_SIGNS = {"underscore": "behind", "digit": "behind", "slash": "behind"}  # a password may have any sign in it
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "MIIEpAIBAAKCAQEA0Zx81kd93jfLq02mNvB77xTq\n" * 4
    + "-----END RSA PRIVATE KEY-----"
)
# (entity, what precedes it, value, where neighbours are part of it)
VALUES: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("EMAIL_ADDRESS", "", "jane@corp.com", {"underscore": "before", "digit": "both"}),
    ("PHONE_NUMBER", "", "+1 650 253 0000", IN_PATH),
    ("PHONE_NUMBER", "", "415-555-2671", IN_PATH),
    ("IP_ADDRESS", "", "93.184.216.34", CONTINUED),
    ("IP_ADDRESS", "", "2606:2800:220:1:248:1893:25c8:1946", CONTINUED),
    ("MAC_ADDRESS", "", "00:1A:2B:3C:4D:5E", CONTINUED),
    ("CREDIT_CARD", "", "4539148803436467", IN_PATH),
    ("CREDIT_CARD", "", "4539 1488 0343 6467", IN_PATH),
    ("IBAN_CODE", "", "AT611904300234573201", {"digit": "both"}),
    ("IBAN_CODE", "", "BE68 5390 0754 7034", {"digit": "both"}),
    ("IBAN_CODE", "", "gb82-west-1234-5698-7654-32", {"digit": "both"}),
    ("CRYPTO", "", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", IN_PATH),
    ("API_KEY", "", "ghp_" + "a1B2c3D4e5F6" * 3, CONTINUED),
    ("API_KEY", "", "AKIAIOSFODNN7EXAMPLQ", CONTINUED),
    ("API_KEY", "api key: ", "Zx81kd93jfLq02mNvB77", OF_SIGNS),
    ("PASSWORD", "password: ", "Tr4vel9Xq", OF_SIGNS),
    ("JSON_WEB_TOKEN", "", JWT, CONTINUED),
    ("PRIVATE_KEY", "", PEM, {}),
    ("US_SSN", "", "536-90-4399", IN_PATH),
    ("US_ITIN", "ITIN ", "912-70-1234", CONTINUED),
    ("UK_NHS", "NHS ", "943 476 5919", CONTINUED),
    ("UK_NINO", "NINO ", "AB 12 34 56 C", CONTINUED),
    ("ES_NIF", "DNI ", "12345678Z", CONTINUED),
    ("ES_NIE", "", "X9613851N", CONTINUED),
    ("IT_FISCAL_CODE", "", "RSSMRA85T10A562S", IN_PATH),
    ("FI_PERSONAL_IDENTITY_CODE", "", "131052-308T", IN_PATH),
    ("PL_PESEL", "PESEL ", "44051401359", CONTINUED),
    ("DE_TAX_ID", "Steuer-ID ", "86095742719", CONTINUED),
    ("SG_NRIC_FIN", "NRIC ", "S1234567D", CONTINUED),
    ("IN_PAN", "Permanent Account Number ", "ABCPE1234F", CONTINUED),
    ("IN_AADHAAR", "Aadhaar ", "3123 4567 8909", CONTINUED),
    ("AU_TFN", "TFN ", "876 543 210", CONTINUED),
    ("AU_ABN", "ABN ", "51 824 753 556", CONTINUED),
    ("CA_SIN", "social insurance number ", "130 692 544", CONTINUED),
    ("KR_RRN", "RRN ", "960121-1234567", CONTINUED),
)


def found(*texts: str) -> list[list[tuple[str, str]]]:
    rows = measure_pii(PiiConfig(), pa.array(texts, pa.string()))["pii"].to_pylist()
    return [
        [(finding["entity"], text[finding["start"] : finding["end"]]) for finding in row]
        for text, row in zip(texts, rows, strict=True)
    ]


def test_numbers_stand_in_tables_and_over_lines_and_tokens_in_queries() -> None:
    iban, card, other = "DE89 3704 0044{}0532 0130 00", "4556737586899855", "4916338506082832"
    over_lines = [iban.format(gap) for gap in ("\n", "\r\n", "  ", "\t", " \n    ")]
    texts = [f"{card},12/27", f"{card},{other}", f"{card},50 paid"]
    assert found(*texts) == [[("CREDIT_CARD", card)], [("CREDIT_CARD", card), ("CREDIT_CARD", other)], []]
    assert found(*over_lines) == [[("IBAN_CODE", text)] for text in over_lines]
    tokens = {
        "token": "3f9a0c7b2e5d8146",
        "access_token": "q7w2e9r4t1y8",
        "key": "xK9mQ2vL8pRt4wZ7",
        "sid": "3f9a0c7b2e5d8146",
    }
    queries = [f"https://a.org/feed?{name}={value}" for name, value in tokens.items()]
    assert [row[0][1] if row else "" for row in found(*queries)] == list(tokens.values())
    assert found("https://a.org/?key=section-two-introduction", "https://a.org/?token=introduction") == [[], []]


def test_every_entity_with_a_form_has_neighbours() -> None:
    assert {entity for entity, *_ in VALUES} == {*PATTERN_ENTITIES}


@pytest.mark.parametrize(("entity", "said", "value", "continued"), VALUES, ids=[f"{v[0]} {v[2][:9]}" for v in VALUES])
def test_what_has_a_form_is_found_exactly_beside_any_neighbour(
    entity: str, said: str, value: str, continued: dict[str, str]
) -> None:
    is_setting = said.endswith(": ")  # the neighbour comes before its name
    places = [(name, side) for name in NEIGHBOURS for side in ("before", "behind", "both")]
    texts = []
    for name, side in places:
        before = NEIGHBOURS[name][0] if side != "behind" else ""
        behind = NEIGHBOURS[name][1] if side != "before" else ""
        texts.append(f"{before}{said}{value}{behind}" if is_setting else f"{said}{before}{value}{behind}")
    wrong = {}
    for (name, side), text, findings in zip(places, texts, found(*texts), strict=True):
        at = continued.get(name, "")
        if at and ("both" in (side, at) or side == at):
            ok = (entity, value) not in findings
        else:
            ok = findings == [(entity, value)]
        if not ok:
            wrong[name, side] = (text, findings)
    assert wrong == {}


def made(country: str, form: str) -> str:
    """An IBAN of a country, of letters and digits that are drawn."""
    draw = random.Random(country)
    kinds = {"n": string.digits, "a": string.ascii_uppercase, "c": string.digits + string.ascii_uppercase}
    account = "".join(
        draw.choice(kinds[kind]) for count, kind in re.findall(r"(\d+)([nac])", form) for _ in range(int(count))
    )
    check = next(check for check in range(2, 99) if is_valid(f"{country}{check:02d}{account}"))
    return f"{country}{check:02d}{account}"


@pytest.mark.parametrize(("country", "form"), [(c, form) for form, those in FORMS.items() for c in those.split()])
def test_ibans_of_every_country_are_found_in_groups_and_without(country: str, form: str) -> None:
    plain = made(country, form)
    grouped = " ".join(plain[start : start + 4] for start in range(0, len(plain), 4))
    mistyped = plain[:-1] + ("1" if plain[-1] != "1" else "2")
    for iban in (plain, grouped, grouped.replace(" ", "-"), plain.lower()):
        texts = [iban, f"an {iban} bank", f"an {iban} 2026 here", f"{iban}, bank", f"至{iban}为止", f"iban:{iban}."]
        assert found(*texts) == [[("IBAN_CODE", iban)]] * len(texts)
    for other in (mistyped, f"{plain}0", f"{grouped}x", f"X{plain}"):
        assert "IBAN_CODE" not in dict(found(other)[0]), other


def test_the_registry_has_89_countries_and_lengths_from_15_to_33() -> None:
    lengths = {
        country: 4 + sum(int(count) for count in re.findall(r"\d+", form))
        for form, countries in FORMS.items()
        for country in countries.split()
    }
    known = {
        "NO": 15,
        "BE": 16,
        "NL": 18,
        "AT": 20,
        "GB": 22,
        "DE": 22,
        "ES": 24,
        "FR": 27,
        "BR": 29,
        "MT": 31,
        "RU": 33,
    }
    assert (len(lengths), min(lengths.values()), max(lengths.values())) == (89, 15, 33)
    assert {country: lengths[country] for country in known} == known


KEY = "f3Kq9ZpL2xWv7RtY8sBnM4cD"


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        (f"https://a.org/feed?token={KEY}", KEY),
        (f"https://a.org/feed?utm=rss&token={KEY}#top", KEY),
        ("https://a.org/feed?token=rqPOppdL7YLl&x=1", "rqPOppdL7YLl"),
        (f"https://a.org/?token={KEY}|x", KEY),
        (f"https://a.org/?a=1&amp;access_token={KEY}", KEY),
        (f"https://a.org/#access_token={KEY}", KEY),
        (f"https://a.org/?key={KEY}", KEY),
        (f"https://a.org/?sp=r&sig={KEY}%2B%3D", f"{KEY}%2B%3D"),
        (f"https://a.org/?X-Amz-Signature={KEY}", KEY),
        (f"https://a.org/;jsessionid={KEY}?x=1", KEY),
        (f"https://a.org/?sid={KEY}", KEY),
        (f"https://a.org/?X-Amz-Security-Token={KEY * 50}", KEY * 50),
        (f"https://{KEY}@git.org/x.git", KEY),
        (f"https://oauth2:{KEY}@git.org/x.git", KEY),
        (f"https://a.org/?key=page&sort=token&x={KEY}", ""),
        ("https://a.org/?session=autumn-2026-term&key=value_of_x1", ""),
        ("https://%61.org%2e%6a%2e%254%30%256%34t4@b.org", ""),
        (f"?key={KEY} and sig={KEY}", ""),
    ],
)
def test_tokens_in_addresses_of_the_web_are_found(url: str, secret: str) -> None:
    for text in (url, f"see {url} for it", f"见{url}，"):
        assert [value for _, value in found(text)[0]] == ([secret] if secret else []), text
    metadata = pa.array([json.dumps({"meta": {"url": url}})])
    (row,) = measure_metadata(MetadataConfig(), metadata)["pii_metadata"].to_pylist()
    assert [url[each["start"] : each["end"]] for each in row] == ([secret] if secret else [])
