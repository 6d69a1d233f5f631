"""Personal data: findings and look-alikes, replacements, and linear time."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from presidio_analyzer import predefined_recognizers

from storage.artifact import Artifact
from storage.shards.documents import Document, shard_name, write_documents
from tasks.filter.pii.config import PATTERN_ENTITIES, Action, PiiConfig
from tasks.filter.pii.findings import SCHEMA, Finding, in_order
from tasks.filter.pii.measure import measure_pii, pii_signals
from tasks.filter.pii.name_places import Lexicon, places
from tasks.filter.pii.names import PACKAGE
from tasks.filter.pii.patterns.plausible import judged
from tasks.filter.pii.patterns.recognisers import recognisers
from tasks.filter.pii.replace import Replacement, replace, without_overlaps
from tasks.filter.pii.surrogates import surrogate
from tasks.filter.side_files import read_signals
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.filter.linear import linear_time

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "MIIEpAIBAAKCAQEA0Zx81kd93jfLq02mNvB77xTq\n" * 8
    + "-----END RSA PRIVATE KEY-----"
)
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
NO_WORDS: Any = None  # of a language model, which recognisers of patterns don't ask
HAS_MODEL = True
try:
    distribution(PACKAGE)
except PackageNotFoundError:
    HAS_MODEL = False
needs_model = pytest.mark.skipif(not HAS_MODEL, reason=f"needs the package {PACKAGE}")


def find(*texts: str, method: str = "patterns") -> list[list[Finding]]:
    batch = measure_pii(PiiConfig.model_validate({"method": method}), pa.array(texts, pa.string()))
    assert batch.schema == SCHEMA
    rows = [[Finding(**finding) for finding in row] for row in batch["pii"].to_pylist()]
    assert batch["pii_findings"].to_pylist() == [len(row) for row in rows]
    return rows


def values(text: str, method: str = "patterns") -> list[tuple[str, str]]:
    return [(finding.entity, text[finding.start : finding.end]) for finding in find(text, method=method)[0]]


@pytest.mark.parametrize(
    ("text", "entity", "value"),
    [
        ("Mail a.b+c@mail.corp.org now", "EMAIL_ADDRESS", "a.b+c@mail.corp.org"),
        ("Card 4539 1488 0343 6467 is fine", "CREDIT_CARD", "4539 1488 0343 6467"),
        ("IBAN DE89 3704 0044 0532 0130 00 here", "IBAN_CODE", "DE89 3704 0044 0532 0130 00"),
        ("iban gb82west12345698765432", "IBAN_CODE", "gb82west12345698765432"),
        ("The server at 93.184.216.34 answered", "IP_ADDRESS", "93.184.216.34"),
        ("from 2606:2800:220:1:248:1893:25c8:1946 on", "IP_ADDRESS", "2606:2800:220:1:248:1893:25c8:1946"),
        ("at 00:1A:2B:3C:4D:5E.", "MAC_ADDRESS", "00:1A:2B:3C:4D:5E"),
        ("to 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "CRYPTO", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"),
        ("call +1 650 253 0000", "PHONE_NUMBER", "+1 650 253 0000"),
        ("fax\n(212) 664-7665x12", "PHONE_NUMBER", "(212) 664-7665x12"),
        ("You can call 33 93 31 at night", "PHONE_NUMBER", "33 93 31"),
        ("ssn 536904399", "US_SSN", "536904399"),
        ("536-90-4399", "US_SSN", "536-90-4399"),
        ("NHS number 943 476 5919", "UK_NHS", "943 476 5919"),
        ("National Insurance: AB 12 34 56 C", "UK_NINO", "AB 12 34 56 C"),
        ("DNI 12345678Z", "ES_NIF", "12345678Z"),
        ("X9613851N", "ES_NIE", "X9613851N"),
        ("codice RSSMRA85T10A562S", "IT_FISCAL_CODE", "RSSMRA85T10A562S"),
        ("hetu 131052-308T", "FI_PERSONAL_IDENTITY_CODE", "131052-308T"),
        ("PESEL 44051401359", "PL_PESEL", "44051401359"),
        ("NRIC S1234567D", "SG_NRIC_FIN", "S1234567D"),
        ("Permanent Account Number ABCPE1234F", "IN_PAN", "ABCPE1234F"),
        ("Aadhaar 3123 4567 8909", "IN_AADHAAR", "3123 4567 8909"),
        ("tax file number 876 543 210", "AU_TFN", "876 543 210"),
        ("ABN 51 824 753 556", "AU_ABN", "51 824 753 556"),
        ("social insurance number 130 692 544", "CA_SIN", "130 692 544"),
        ("aws AKIAIOSFODNN7EXAMPLQ end", "API_KEY", "AKIAIOSFODNN7EXAMPLQ"),
        ("ghp_" + "a1B2c3D4e5F6" * 3, "API_KEY", "ghp_" + "a1B2c3D4e5F6" * 3),
        ("tel 010 1234 5678 in Beijing", "PHONE_NUMBER", "010 1234 5678"),
        ("Appelez le 01 23 45 67 89 pour", "PHONE_NUMBER", "01 23 45 67 89"),
        ("+93 23 456 8861", "PHONE_NUMBER", "+93 23 456 8861"),
        ("Telefon: 030/1234567.", "PHONE_NUMBER", "030/1234567"),
        ("Jane Doe, 8 (912) 345-67-89", "PHONE_NUMBER", "8 (912) 345-67-89"),
        ("ask 1-786-258-2394", "PHONE_NUMBER", "1-786-258-2394"),
        ("電話：０３－１２３４－５６７８", "PHONE_NUMBER", "０３－１２３４－５６７８"),
        ("2-series 2221 0067 5812 3455", "CREDIT_CARD", "2221 0067 5812 3455"),
        (
            "visa 4929\u00a01234\u00a05678\u00a09012\u00a0343",
            "CREDIT_CARD",
            "4929\u00a01234\u00a05678\u00a09012\u00a0343",
        ),
        ("maestro card 6759 1234 5678 9015", "CREDIT_CARD", "6759 1234 5678 9015"),
        (
            "IBAN DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
            "IBAN_CODE",
            "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
        ),
        ("ip=93.184.216.34", "IP_ADDRESS", "93.184.216.34"),
        ("from <93.184.216.34>", "IP_ADDRESS", "93.184.216.34"),
        ("http://host/?mail=a@b.com&x=1", "EMAIL_ADDRESS", "a@b.com"),
        ("mail ｊａｎｅ＠ｃｏｒｐ．ｃｏｍ now", "EMAIL_ADDRESS", "ｊａｎｅ＠ｃｏｒｐ．ｃｏｍ"),
        ("bounce+jane=corp.com@lists.mail.org", "EMAIL_ADDRESS", "bounce+jane=corp.com@lists.mail.org"),
        (
            "AWS_SECRET_ACCESS_KEY=7JvxBJulIZfAfrEVmKr13bEitrhGRu9o9C9ajfM3",
            "API_KEY",
            "7JvxBJulIZfAfrEVmKr13bEitrhGRu9o9C9ajfM3",
        ),
        ("export X_TOKEN=SZF8xUPfKyTOburSHtePI2WLUXwXDFI7", "API_KEY", "SZF8xUPfKyTOburSHtePI2WLUXwXDFI7"),
        ("db:\n  password: Tr4vel9Xq!u\n", "PASSWORD", "Tr4vel9Xq!u"),
        (
            "Authorization: Bearer FTBSpkSOFEFqUuxl9kmEmVmTQEdVqAyFXmn2fMca",
            "API_KEY",
            "FTBSpkSOFEFqUuxl9kmEmVmTQEdVqAyFXmn2fMca",
        ),
        ("postgres://app:Tr4vel9Xq@db/sales", "PASSWORD", "Tr4vel9Xq"),
        ("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", "API_KEY", "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"),
        ("7203948156:AAH9hk3Yc1Qz7Lr5_Wm2Xp8Vb4Ns6Tj0DfG", "API_KEY", "7203948156:AAH9hk3Yc1Qz7Lr5_Wm2Xp8Vb4Ns6Tj0DfG"),
        ('api_key = "Zx81kd93jfLq02mNvB77"', "API_KEY", "Zx81kd93jfLq02mNvB77"),
        (f"Bearer {JWT}", "JSON_WEB_TOKEN", JWT),
        (f"key:\n{PEM}\n", "PRIVATE_KEY", PEM),
    ],
)
def test_what_has_a_form_is_found_where_it_stands(text: str, entity: str, value: str) -> None:
    assert (entity, value) in values(text)


@pytest.mark.parametrize(
    "text",
    [
        "Card 4539 1488 0343 6468 fails its checksum",
        "A fraction is 0.4111111111111111",
        "Version 1.2.3.4 and v3.11.0.1, and openssl-1.0.2.1",
        "std::vector, dead::beef, `::`, 127.0.0.1 and 10.0.0.1",
        "The signature must be::",
        "From 1640 to 1688, pages 120-134, ISBN",
        "J. Comp. (1996) 329-359",
        "In 2019 there were 1,234,567 people",
        "id 943 476 5919, 12345678Z, 44051401359, S1234567D and 876 543 210",
        "order 650-253-00001 and 2606/2800",
        "@property\n@staticmethod\ndef a(): ...",
        "password = 'correct-horse-battery'",
        'token = "my_variable_name_2"',
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        "commit 1f3870be274f6c49b3e31a0c6728957f1f3870be",
        "git clone git@github.com:corp/repo.git; ssh://git@corp.com/x; scp jane@corp.com:/tmp/a .",
        "user@example.com, noreply@github.com, jane@users.noreply.github.com and you@yourdomain.com",
        "numpy 1.26.4.1, the 11.2.0.3 patch set, section 4.1.2.3, OID 1.3.101.112, Chrome/115.0.5790.170",
        "8.8.8.8 and 1.1.1.1 resolve names; 203.0.113.7 and 2001:db8::1 are for examples",
        "order 1234-536-90-4399-7 and 536-90-4399-12, table 123 45 6789",
        "4111 1111 1111 1111, 4242424242424242 and 378282246310005 are for tests",
        "ISBN 978-3-16-148410-0, 9783161484100; EAN 4006381333931; DOI 10.1109/5.771073",
        "uuid 9df799de-317d-b531-1777-50664bf8423d at 2026-11-24T02:30:18.123456Z, epoch 1732415418123456",
        "sha512-yHxSSdMdUagVBkXMiNgkAQhmC1+M0xXTnX0kqa7QDE2q6Fj4GoTOy8C3hlE4wcBEsd5uOCUjWJs3AhX5fSIVgM==",
        "48.8566, 2.3522 and -33.868820 151.209290; 1286-1304; 2019-2020; 12/11/2026 10:15",
        "0.12345 0.23456 0.34567\n12 345 678 | 23 456 789 | 34 567 890",
        "token = self.tokenizer_v2.next_token_1()\npassword: ${DB_PASSWORD}\nsecret: <your-secret-1>",
        "call (212) 555-0147 in films",
    ],
)
def test_what_only_looks_like_personal_data_is_left_alone(text: str) -> None:
    assert values(text) == []


@given(st.text(st.sampled_from("aé汉😀 \n.,"), max_size=40), st.text(st.sampled_from("aé汉😀 \n.,"), max_size=40))
@settings(max_examples=60)
def test_places_are_in_characters_whatever_stands_around(before: str, after: str) -> None:
    text = f"{before} jane@corp.com {after} +1 650 253 0000 {before}"
    assert values(text) == [("EMAIL_ADDRESS", "jane@corp.com"), ("PHONE_NUMBER", "+1 650 253 0000")]


def test_a_row_a_text_for_empty_batches_slices_and_texts_of_nothing() -> None:
    assert measure_pii(PiiConfig(), pa.array([], pa.string())).schema == SCHEMA
    assert find("", " ", "😀", "\n") == [[], [], [], []]
    sliced = pa.array(["x@corp.com", "a", "é y@corp.com"]).slice(1)
    assert measure_pii(PiiConfig(), sliced)["pii_findings"].to_pylist() == [0, 1]


def test_only_the_entities_asked_for_are_looked_for() -> None:
    config = PiiConfig(entities=["EMAIL_ADDRESS"])
    row = measure_pii(config, pa.array(["a@corp.com, card 4539 1488 0343 6467"]))["pii"].to_pylist()[0]
    assert [finding["entity"] for finding in row] == ["EMAIL_ADDRESS"]


def test_the_scan_and_its_windows_lose_nothing_of_whole_texts(shared_data: Callable[[str], Path]) -> None:
    rows = json.loads((shared_data("filters/pii_presidio_synth") / "generated_large.json").read_text())[:500]
    texts = [row["full_text"] for row in rows]
    long = "\n\n".join(texts[:200])
    for text, found in zip([long, *texts[200:]], find(long, *texts[200:]), strict=True):
        whole = [
            finding
            for entity, recogniser in recognisers().items()
            for result in recogniser.analyze(text, [entity], NO_WORDS)
            if (finding := judged(text, Finding(entity, result.start, result.end, round(result.score, 3))))
        ]
        assert in_order(whole) == [finding for finding in found if finding.entity in recognisers()]


def test_no_labelled_finding_of_presidio_is_lost(shared_data: Callable[[str], Path]) -> None:
    rows = json.loads((shared_data("filters/pii_presidio_synth") / "generated_large.json").read_text())
    theirs_for: dict[str, Any] = {
        **recognisers(),
        "PHONE_NUMBER": predefined_recognizers.PhoneRecognizer(),
        "CREDIT_CARD": predefined_recognizers.CreditCardRecognizer(),
        "IBAN_CODE": predefined_recognizers.IbanRecognizer(),
    }
    private = "10.218.6.131"  # labelled, but an address of a private network belongs to nobody
    lost = []
    for row, found in zip(rows, find(*(row["full_text"] for row in rows)), strict=True):
        for span in row["spans"]:
            entity, start, end = span["entity_type"], span["start_position"], span["end_position"]
            if entity not in PATTERN_ENTITIES or span["entity_value"] == private:
                continue
            theirs = theirs_for[entity].analyze(row["full_text"], [entity], NO_WORDS) if entity in theirs_for else []
            known = entity == "EMAIL_ADDRESS" or any(
                r.score >= 0.4 and (r.start, r.end) == (start, end) for r in theirs
            )
            if known and not any((f.entity, f.start, f.end) == (entity, start, end) for f in found):
                lost.append(span["entity_value"])
    assert lost == []


HOSTILE = {
    "digits": "7" * 10_000_000,
    "ats": "@" * 100_000,
    "colons": ":" * 1_000_000,
    "one word": "a" * 10_000_000,
    "letters and digits": "aB3" * 1_000_000,
    "half addresses": "a@" * 500_000,
    "half logins": ("a://u:" + "@" * 190) * 5_000,
    "headers": "-----BEGIN PRIVATE KEY-----" * 2_000,
    "Chinese": "汉字" * 500_000,
    "equal lines": "The same line again, and a date: 2026-11-21\n" * 100_000,
}


@pytest.mark.soak_but("ats", "colons", "one word", "letters and digits", "half addresses", "half logins", "Chinese")
@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_texts_take_linear_time(name: str) -> None:
    find("warm +1 650 253 0000")
    with linear_time():
        assert find(HOSTILE[name]) == [[]]


@needs_model
@pytest.mark.parametrize("name", ["one word", "colons", "Chinese", "equal lines"])
def test_hostile_texts_hold_no_names_either(name: str) -> None:
    find("warm Jane Doe", method="ner")
    with linear_time():
        assert find(HOSTILE[name], method="ner") == [[]]


texts_with_findings = st.lists(
    st.tuples(
        st.text(st.sampled_from("aé😀 <>."), max_size=8),
        st.sampled_from(["EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS", "PERSON", "API_KEY"]),
        st.sampled_from(["redact", "surrogate", "keep", "drop"]),
    ),
    max_size=8,
)
VALUES = {
    "EMAIL_ADDRESS": "jane@corp.com",
    "PHONE_NUMBER": "+1 650 253 0000",
    "IP_ADDRESS": "93.184.216.34",
    "PERSON": "Jane Doe",
    "API_KEY": "AKIAIOSFODNN7EXAMPLQ",
}


@given(texts_with_findings)
def test_replacements_stand_where_they_are_said_to_and_nothing_else_changes(
    parts: list[tuple[str, str, Action]],
) -> None:
    text, findings, actions = "", [], {}
    for before, entity, action in parts:
        start = len(text) + len(before)
        text += before + VALUES[entity]
        findings.append(Finding(entity, start, len(text), 0.5))
        actions[findings[-1]] = action
    new, done = replace(text, findings, actions.__getitem__, "salt")
    assert [r.finding for r in done] == [f for f in findings if actions[f] in ("redact", "surrogate")]
    old_end = new_end = 0
    for finding, start, end in done:
        value = VALUES[finding.entity]
        other = surrogate(finding.entity, value, "salt") if actions[finding] == "surrogate" else None
        assert new[start:end] == (other or f"<{finding.entity}>")
        assert new[new_end:start] == text[old_end : finding.start]
        old_end, new_end = finding.end, end
    assert new[new_end:] == text[old_end:]


def test_of_overlapping_findings_the_surest_is_taken_then_the_longest() -> None:
    text = "0123456789"
    found = [Finding("A", 0, 4, 0.5), Finding("B", 2, 9, 0.9), Finding("C", 2, 10, 0.9), Finding("D", 8, 10, 1.0)]
    assert replace(text, found, lambda _: "redact", "") == (
        "<A>4567<D>",
        [Replacement(found[0], 0, 3), Replacement(found[3], 7, 10)],
    )


@pytest.mark.parametrize(
    ("entity", "value", "shape"),
    [
        ("EMAIL_ADDRESS", "jane.doe@corp.com", r"[a-z]+\.\w{8}@example\.(com|net|org)"),
        ("PHONE_NUMBER", "(212) 664-7665", r"\([2-9]\d\d\) 555-01\d\d"),
        ("PHONE_NUMBER", "+44 20 7946 0958", r"\+1\d \d\d \d555 01\d\d"),
        ("PHONE_NUMBER", "+1-203-305-2492x566", r"\+1-[2-9]\d\d-555-01\d\dx\d{3}"),
        ("CREDIT_CARD", "4539-1488-0343-6467", r"4242-42\d\d-\d{4}-\d{4}"),
        ("US_SSN", "536-90-4399", r"9\d\d-[0-4]\d-\d{4}"),
        ("IBAN_CODE", "DE89 3704 0044 0532 0130 00", r"DE\d\d 0000 0000 \d{4} \d{4} \d\d"),
        ("MAC_ADDRESS", "00:1a:2b:3c:4d:5e", r"00:00:5e:00:53:[0-9a-f]{2}"),
        ("PERSON", "JANE DOE", r"[A-Z]+ [A-Z]+"),
    ],
)
def test_surrogates_have_the_shape_of_the_original_in_a_reserved_range(entity: str, value: str, shape: str) -> None:
    for number in range(20):
        assert re.fullmatch(shape, surrogate(entity, value, f"salt {number}") or "")


def test_surrogates_pass_the_checks_of_their_kind() -> None:
    reserved = [ipaddress.ip_network(f"{net}.0/24") for net in ("192.0.2", "198.51.100", "203.0.113")]
    for number in range(30):
        made = surrogate("IBAN_CODE", f"GB82WEST123456987654{number:02d}", "salt") or ""
        (result,) = predefined_recognizers.IbanRecognizer().analyze(made, ["IBAN_CODE"], NO_WORDS)
        assert (result.start, result.end, result.score) == (0, len(made), 1.0)
        v4 = ipaddress.ip_address(surrogate("IP_ADDRESS", f"93.184.216.{number}", "salt") or "")
        v6 = ipaddress.ip_address(surrogate("IP_ADDRESS", f"2606:2800::{number}", "salt") or "")
        assert any(v4 in network for network in reserved)
        assert v6 in ipaddress.ip_network("2001:db8::/32")


def test_the_same_value_gets_the_same_surrogate_and_another_salt_another() -> None:
    first = surrogate("EMAIL_ADDRESS", "Jane@Corp.com", "a")
    assert first == surrogate("EMAIL_ADDRESS", "jane@corp.com", "a")
    assert first != surrogate("EMAIL_ADDRESS", "jane@corp.com", "b")
    written_apart, together = surrogate("US_SSN", "536-90-4399", "a"), surrogate("US_SSN", "536904399", "a")
    assert (written_apart or "").replace("-", "") == together
    assert surrogate("ES_NIE", "X9613851N", "a") is None


def test_a_name_can_stand_at_a_capital_that_grammar_and_code_do_not_explain() -> None:
    lexicon = Lexicon(frozenset({"the", "they"}), frozenset({"the", "run"}), frozenset({"the", "run", "lives", "in"}))

    def words(text: str) -> list[str]:
        return [text[start:end] for start, end in places(text, lexicon)]

    assert words("The river. Run to Anna in Paris, USA.") == ["Anna", "Paris", "USA"]
    assert words("A DataFrame or pd.Series, HTTP, None and Foo(x)") == []
    assert words("Stones fall. They see stones.\n\nAnna\n") == ["Anna"]
    assert words("the anna lives in bauru") == ["anna", "bauru"]
    assert words("Écoute Ólafur") == ["Écoute", "Ólafur"]


@needs_model
def test_names_are_found_where_they_stand_and_only_when_asked_for() -> None:
    text = "😀 Yesterday Angela Merkel flew from Berlin to see her sister.\n" + "Nothing is here to see. " * 40
    names = [("PERSON", "Angela Merkel"), ("LOCATION", "Berlin")]
    assert values(text, "ner") == names
    assert values(f"{text} a@corp.com", "both") == [*names, ("EMAIL_ADDRESS", "a@corp.com")]
    assert values(text) == []


@needs_model
def test_what_a_text_holds_does_not_depend_on_its_neighbours() -> None:
    texts = [f"Write to John Smith{n}@corp.com, he has lived in London since {n}. Anna knows." for n in range(70)]
    alone = [find(text, method="both")[0] for text in texts[:5]]
    assert find(*texts, method="both")[:5] == alone
    assert find(*reversed(texts), method="both")[-5:] == alone[::-1]


def test_the_stage_writes_findings_beside_the_documents(tmp_path: Path) -> None:
    write_documents(tmp_path / "in" / shard_name(0), [Document.new(t, "test") for t in ("a@corp.com", "nothing")])
    out = Output.at(tmp_path, stage="pii", runtime=runtime_of(workers=1))
    pii_signals.function(PiiConfig(), Artifact.at(tmp_path / "in"), None, out)
    (path,) = out.path.glob("*.parquet")
    assert [count for batch in read_signals(path) for count in batch["pii_findings"].to_pylist()] == [1, 0]
    assert out.counts["measured"] == 2


def test_neither_torch_nor_the_network_is_touched() -> None:
    methods = ["ner", "patterns"] if HAS_MODEL else ["patterns"]
    script = (
        "import socket, sys\n"
        "def refuse(*_, **__): raise SystemExit('the network was asked')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "import pyarrow as pa\n"
        "from tasks.filter.pii.config import PiiConfig\n"
        "from tasks.filter.pii.measure import measure_pii\n"
        "assert 'presidio_analyzer' not in sys.modules\n"
        f"for method in {methods}:\n"
        "    texts = pa.array(['He met Jane Doe, jane@corp.com'])\n"
        "    assert measure_pii(PiiConfig(method=method), texts)['pii_findings'].to_pylist() == [1]\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "text",
    [
        "<p>(800) 235-7949</p>",
        "<b>1-800-235-7949</b>",
        "<h2>509-459-5382</h2>",
        "**509-459-5382**",
        "<td>+353 1 716 1987</td>",
    ],
)
def test_a_telephone_number_may_begin_behind_markup(text: str) -> None:
    found = measure_pii(PiiConfig(), pa.array([text])).to_pylist()[0]["pii"]
    assert [finding["entity"] for finding in found] == ["PHONE_NUMBER"]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.sampled_from([0.4, 0.7, 1.0])), max_size=25))
def test_of_overlapping_findings_the_surest_and_then_the_longest_is_taken(spans: list[tuple[int, int, float]]) -> None:
    given_findings = [Finding("CRYPTO", start, start + length, score) for start, length, score in spans]
    expected: list[Finding] = []
    for finding in sorted(given_findings, key=lambda f: (-f.score, f.start - f.end, f.start)):
        if all(finding.end <= other.start or other.end <= finding.start for other in expected):
            expected.append(finding)
    assert without_overlaps(given_findings) == sorted(expected, key=lambda f: f.start)


def test_many_overlapping_findings_take_no_quadratic_time() -> None:
    with linear_time():
        taken = without_overlaps(Finding("CRYPTO", start, start + 3, 0.5) for start in range(200_000))
    assert len(taken) > 60_000
