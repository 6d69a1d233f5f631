"""Personal data as people write it: passwords in sentences and commands, telephone numbers in tables, addresses that
hide their @, each with its look-alikes. Hostile texts take linear time."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.measure import measure_pii
from tasks.filter.pii.surrogates import surrogate
from tests.tasks.filter.linear import linear_time

KEY = "Zx81kd93jfLq02mNvB77"
STORAGE_KEY = "qW3eR5tY7uI9oP1aS2dF4gH6jK8lZ0/C5vB7nM9qW1eR3tY5uI7oP+aS0dF2gH4jK6lZ8xC1vB3nM5qW7eR9tA=="
UUID = "3f2b8c1e-9d47-4a6b-8f01-5c7de2a94b36"


def values(text: str) -> list[tuple[str, str]]:
    row = measure_pii(PiiConfig(), pa.array([text], pa.string()))["pii"].to_pylist()[0]
    return [(finding["entity"], text[finding["start"] : finding["end"]]) for finding in row]


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ("User: bob / Password: hunter2x!", "hunter2x!"),
        ("please set password=Tr4vel9Xq and restart", "Tr4vel9Xq"),
        ("It is (password: Tr4vel9Xq!).", "Tr4vel9Xq!"),
        ("Is the password: Tr4vel9Xq?", "Tr4vel9Xq"),
        ("DB_PASSWORD=s3cr3tPa55!", "s3cr3tPa55!"),
        ("DB_PASSWORD=s3cr3tPa55.\nX=1", "s3cr3tPa55."),
        ("docker run -e DB_PASSWORD=Tr4vel9Xq image", "Tr4vel9Xq"),
        ("then run it --password=Tr4vel9Xq! now", "Tr4vel9Xq!"),
        ("tool --verbose --password Tr4vel9Xq! now", "Tr4vel9Xq!"),
        ('New-User -Password "Tr4vel9Xq!"', "Tr4vel9Xq!"),
        ("mysql -u root -pTr4vel9Xq sales", "Tr4vel9Xq"),
        ("mysqldump -p'Tr4vel9Xq!' sales", "Tr4vel9Xq!"),
        ("sshpass -pTr4vel9Xq ssh bob@host", "Tr4vel9Xq"),
        ("curl -u bob:Tr4vel9Xq https://corp.net", "Tr4vel9Xq"),
        ("curl -s \\\n  --user 'api:trouvaille!t' x", "trouvaille!t"),
        ("user=bob&password=Tr4vel9Xq!&next=1", "Tr4vel9Xq!"),
        ("<password>Tr4vel9Xq!</password>", "Tr4vel9Xq!"),
        ('env.get("DB_PASSWORD", "Tr4vel9Xq!")', "Tr4vel9Xq!"),
        ("Mot de passe : Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("Mot de passe\u00a0: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("Ihr Passwort: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("Kennwort=Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("Usuario: ana, contraseña: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("Sua senha: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("wachtwoord: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("Hasło: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("lösenord: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("Şifre: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("mật khẩu: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("Логин: bob, ПАРОЛЬ: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("您的密码：Tr4vel9Xq！", "Tr4vel9Xq"),
        ("パスワード：Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("비밀번호: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("รหัสผ่าน: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("पासवर्ड: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("كلمة المرور: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("סיסמה: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("κωδικός: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("The wifi password is: Tr4vel9Xq!", "Tr4vel9Xq!"),
        ("The wifi password is: Tr4vel!9Xq. Enjoy!", "Tr4vel!9Xq"),
        ("The wifi password is: Tr4vel!9Xq and the guest one is on the wall", "Tr4vel!9Xq"),
        ("<password>Tr4vel9Xq&amp;3x</password>", "Tr4vel9Xq&amp;3x"),
        (r'{"DB_PASSWORD": "q!W3\"e4R5t6"}', r"q!W3\"e4R5t6"),
        (r'{"DB_PASSWORD": "Tr4vel9Xq!\"y", "x": 1}', r"Tr4vel9Xq!\"y"),
        (r'"{\"password\": \"Tr4vel9Xq!\"}"', "Tr4vel9Xq!"),
        ("postgres://app:p%40ssW0rd%21x@db.corp.net/prod", "p%40ssW0rd%21x"),
        ("sshpass -p 'Tr4vel9#Xq' ssh bob@host", "Tr4vel9#Xq"),
        ('sshpass -p "Tr4vel9#Xq"', "Tr4vel9#Xq"),
        ("s3://access_key_id:Tr4vel9_key@bucket/key", "Tr4vel9_key"),
    ],
)
def test_passwords_are_found_wherever_a_label_or_a_command_says_so(text: str, password: str) -> None:
    assert values(text) == [("PASSWORD", password)]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"api key: {KEY}", KEY),
        (f"Your API Key: {KEY}. Keep it.", KEY),
        (f"the secret key = {KEY}", KEY),
        (f"deploy --token {KEY} --now", KEY),
        (f"New-Thing -ClientSecret '{KEY}'", KEY),
        (f"os.environ.get('API_TOKEN', '{KEY}')", KEY),
        (f"<apiKey>{KEY}</apiKey>", KEY),
        ("Authorization: Basic am9objpUcjR2ZWw5WHE=", "am9objpUcjR2ZWw5WHE="),
        ("curl -H 'Authorization: Basic am9objpUcjR2ZWw5WHE='", "am9objpUcjR2ZWw5WHE="),
        (f"Authorization: Api-Token {KEY}", KEY),
        ("SERVICE_KEY=AKIARJWILWEONVENTWAI", "AKIARJWILWEONVENTWAI"),
        (f"use pat-na1-{UUID} for it", f"pat-na1-{UUID}"),
        (f"use access-sandbox-{UUID} for it", f"access-sandbox-{UUID}"),
        (f"use ico-{'a1B2c3D4' * 4} for it", f"ico-{'a1B2c3D4' * 4}"),
        (f"use s-s4t2ud-{'0f1e2d3c' * 8} for it", f"s-s4t2ud-{'0f1e2d3c' * 8}"),
        (f"use 130874276261258|{'rhoK1cbv0' * 3} for it", f"130874276261258|{'rhoK1cbv0' * 3}"),
        (
            f"use pat.{'aB3dE6gH9kL' * 2}.{'0f1e2d3c' * 3}.{'Zx81k' * 4} for it",
            f"pat.{'aB3dE6gH9kL' * 2}.{'0f1e2d3c' * 3}.{'Zx81k' * 4}",
        ),
        ("use API-7KQ9A2LM4XC8RT5WB1ZP6NDE3H for it", "API-7KQ9A2LM4XC8RT5WB1ZP6NDE3H"),
        (f"AccountName=x;AccountKey={STORAGE_KEY};EndpointSuffix=core.windows.net", STORAGE_KEY),
        (f"use aB3dE6_{'Zx81kd93jfLq0' * 2}mNv_mmk for it", f"aB3dE6_{'Zx81kd93jfLq0' * 2}mNv_mmk"),
        (f"use nvapi-{'aB3dE6gH9k' * 6}_-x for it", f"nvapi-{'aB3dE6gH9k' * 6}_-x"),
    ],
)
def test_keys_are_found_behind_labels_flags_and_in_the_forms_of_their_issuers(text: str, key: str) -> None:
    assert values(text) == [("API_KEY", key)]


@pytest.mark.parametrize(
    "text",
    [
        "password: required\nEnter your password: it must be 8 characters, or a passphrase",
        "password=password, password = getpass(), password=os.environ['DB_PASS1'] and password=input('1: ')",
        "password: ${DB_PASSWORD1}, --password=$PASSWORD1, password: {{ vault_db1 }}, PASSWORD=$(cat /run/x1Y!)",
        "password=<your-password1>, password=%DB_PASS1%, --password <Passw0rd>",
        "def f(user, password: Base64Str): ...",
        "f(password=Config2.value_of), f(password=config.DB_PASS2, x=1)",
        "if password == Foo2bar!x: pass",
        "compass: N4orth5East and enclave: Tr4vel9Xq",
        "docker run -u 1000:1000 -p8080:80 image; sort -u file1:file2; ssh -p2222 host; cp -p Backup1234 x",
        "--password-file /run/secrets/Db1pass --key /etc/ssl/Key1.pem --token-file Tokens1.txt",
        "mysql -p$DB_PASS1 sales; curl -u user:password https://x; curl -u $USER:$PASS1 https://x",
        '<label for="password">Choose4Us!x</label> <option value="token">Zx81kd93jfLq02mNvB77</option>',
        "password=@/path/To1/file pwd=C:/Users/Bob1 PWD=/home/Bob1",
        "Authorization: Basic dXNlcjpwYXNzd29yZA==\nAuthorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
        "{a:1,pwd:e.A2b||c,x:2}",
        "('username', 'password1'), ('key', 'value_2_of_3')",
        "Passwort: mindestens 8 Zeichen. 密码：至少8位. Пароль: не менее 8 символов. Mot de passe : 8caractères",
        "api key: see page 12345678901234567890 and the key: f3f4f5f6",
        "s3://access_key_id:secret_access_key@bucket/key s3://aws_access_key_id:aws_secret_access_key@bucket/key",
        "https://clientId:clientSecret@corp.net s3://ACCESS_KEY:SECRET_KEY@bucket",
        "x://app:%7B%7Bpass%7D%7D@db x://app:%24PASS@db x://app:%DB_PASS%@db x://app:pass%77ord@db x://app:%3Cpwd%3E@db",
        "mkdir -p 'T0ugh#Nut77'; mysql -p 'T0ugh#Nut77'; sshpass -p '$SSH_PASS1'; sshpass -p '<Passw0rd>'",
        "The password is: required. Its: Tr4vel9Xq! The token is: a string. The wifi is: Tr4vel9Xq!",
        "<password>&lt;password1&gt;</password> <password>a1B&amp;</password> <p>Tr4vel9Xq&amp;3x</p>",
        r'"password": "say \"hello\" to 12345678", "note": "q!W3\"e4R5t6"',
        "Tokens: 1,234,567 --max-tokens 4096 --tokenizer bert-base-cased-v2-2024",
    ],
)
def test_what_is_said_of_passwords_and_code_that_handles_them_is_none(text: str) -> None:
    assert values(text) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Büro 030 / 20 93 70 00 Berlin", "030 / 20 93 70 00"),
        ("Tel. +49 30 / 20 93 70 00", "+49 30 / 20 93 70 00"),
        ("(+353 or 0)86 854 9268", "(+353 or 0)86 854 9268"),
        ("x (+44/0)20 7946 1958", "(+44/0)20 7946 1958"),
        ("Jane,Doe,415-555-2671,NY", "415-555-2671"),
        ("id,phone\n12,415-555-2671,27", "415-555-2671"),
        ("Doe,+44 20 7946 1958,London", "+44 20 7946 1958"),
        ("Doe,01 42 33 24 15,Paris", "01 42 33 24 15"),
        ("a,(415) 555-2671", "(415) 555-2671"),
        ("To order: 1-800-242-0363", "1-800-242-0363"),
        ("Tel: 01 12 23 34 45", "01 12 23 34 45"),
        ("her caller ID 415-555-2671", "415-555-2671"),
        ("01 42 33 24 15\n01 42 33 24 16", "01 42 33 24 15"),
    ],
)
def test_telephone_numbers_are_found_as_they_are_written(text: str, number: str) -> None:
    assert ("PHONE_NUMBER", number) in values(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0171 2345678 ist meine Handynummer.", ["0171 2345678"]),
        ("0171 2345678 is my new phone", ["0171 2345678"]),
        ("Tel. 0171 2345678 oder 0172 9876543 oder 0160 5554443", ["0171 2345678", "0172 9876543", "0160 5554443"]),
        ("Write to tel.+48(22)6951000.Or come", ["+48(22)6951000"]),
        ("Cell. 347 123 4567 Prezzo 1.234.567 EUR", ["347 123 4567"]),
        ("Cell phone sales: 347 123 456", ["347 123 456"]),
        ("Telephone 23 456 789, people may call", ["23 456 789"]),
        ("Contact: 212 345 678", ["212 345 678"]),
    ],
)
def test_of_several_numbers_those_for_the_telephone_are_found(text: str, numbers: list[str]) -> None:
    assert values(text) == [("PHONE_NUMBER", number) for number in numbers]


@pytest.mark.parametrize("between", [" ", ",", ", ", "/", ";", "|", ": ", "> ", "\t"])
def test_a_number_may_stand_right_behind_an_address(between: str) -> None:
    for number in ("415-555-2671", "+49 30 20937000"):
        assert values(f"jane@corp.com{between}{number}") == [
            ("EMAIL_ADDRESS", "jane@corp.com"),
            ("PHONE_NUMBER", number),
        ]


@pytest.mark.parametrize(
    "text",
    [
        "rows: 01 12 23 34 45, lottery 02 14 23 35 41 47, call 10 20 30 40 50",
        "01 22 13 54 45\n12 33 14 25 36\n",
        "GSM 900/1800/1900, GSM 900/1800 and a mobile phone (850/900/1800/1900 MHz)",
        "Part No. 415-555-2671, S/N 212-664-7665, P/N 800-235-7949",
        "serial number: 212-664-7665; Order #: 212-664-7665; invoice no. 212-664-7665; customer id 212-664-7665",
        "01632 960123, 020 7946 0958, +44 7700 900461, 0161 496 0999 and (212) 555-0147 are for films",
        "Cell phone sales: 1.234.567 units",
        "Phone revenue 2 345 678 901",
        "Contact: 12 345 678 people live here",
        "Telephone lines: 4 512 345",
        "Mobile: € 1 234 567, cell EUR 1.234.567, phone 1.234.567 €, tel. 345 678 million",
        "12345678 is my final word, 12345678 is the number of people",
        "It costs 0171 2345678 oder 0172 9876543 oder 0160 5554443; tel.6951000.Or",
        "a sin 130 692 544, x[1,234,567,890] = 12,345,678 or 0.5,0.123456,7",
    ],
)
def test_other_numbers_are_none_for_the_telephone(text: str) -> None:
    assert values(text) == []


def test_a_canadian_social_insurance_number_is_no_telephone_number() -> None:
    assert values("SIN: 130 692 544") == [("CA_SIN", "130 692 544")]
    assert values("SIN 046 454 286") == []  # none that begins with 0 is issued


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("jane.doe@email.com", "jane.doe@email.com"),
        ("mailto:jane%40corp.com", "jane%40corp.com"),
        ("x?email=jane%2Btag%40corp.com&y=1", "jane%2Btag%40corp.com"),
        ("%3Cjane%40corp.com%3E", "jane%40corp.com"),
        ('<a href="mailto:jane&#64;corp.com">', "jane&#64;corp.com"),
        ("jane&#x40;corp.com jane", "jane&#x40;corp.com"),
        ("jane&commat;corp.com", "jane&commat;corp.com"),
        ("write jane&#46;doe&commat;corp.com", "jane&#46;doe&commat;corp.com"),
        ("jane&#046;m&period;doe&#64;corp&#x2E;co&#46;uk.", "jane&#046;m&period;doe&#64;corp&#x2E;co&#46;uk"),
        ("x?mail=jane&#46;doe@corp.com", "jane&#46;doe@corp.com"),
        ("jane@corp&#46;com", "jane@corp&#46;com"),
        ("jane&amp;doe@corp.com &#46;", "doe@corp.com"),
        ("jane [at] corp [dot] com", "jane [at] corp [dot] com"),
        ("jane.doe [AT] uni-bonn [DOT] de", "jane.doe [AT] uni-bonn [DOT] de"),
        ("jane(at)corp.com", "jane(at)corp.com"),
        ("jane [at] corp.com.", "jane [at] corp.com"),
        ("jane{at}corp.com", "jane{at}corp.com"),
        ("jane@corp[dot]com", "jane@corp[dot]com"),
        ("jane@corp [dot] com", "jane@corp [dot] com"),
        ("jane@corp dot com is mine", "jane@corp dot com"),
        ("jane@corp.com dot your i's", "jane@corp.com"),
        ("Contact jane dot doe at corp dot com today", "jane dot doe at corp dot com"),
        ("e-mail: jane at corp dot co dot uk", "jane at corp dot co dot uk"),
        ("jane AT corp DOT com", "jane AT corp DOT com"),
        ("ja\u00adne@cor\u00adp.com", "ja\u00adne@cor\u00adp.com"),
        ("jane\u200b@\u200bcorp\u200b.\u200bcom", "jane\u200b@\u200bcorp\u200b.\u200bcom"),
    ],
)
def test_addresses_are_read_however_their_signs_are_written(text: str, address: str) -> None:
    assert values(text) == [("EMAIL_ADDRESS", address)]


@pytest.mark.parametrize(
    "text",
    [
        "user@email.com, user (at) example.com, your.name [at] example [dot] com, noreply%40corp.com",
        "look at corp dot com; visit us at amazon dot com. Contact us at amazon dot com",
        "https://x.com/?text=ask%20%40corp.com https://medium.com/%40bob.smith/x /%40types/node.js",
        "lodash%404.17.21/x.js logo%402x.png https://registry.npmjs.org/%40babel%2fcore pkg%40latest/foo.js",
        "f(at) obj.id; arr[at].com; x[at] = y.id; if (at) x.id()",
        "a &#46; b&#46;c, the end&#46; x@b&#46; and @foo&#46;bar a@b&#35;com",
        "a &#64; b, at dot at dot at dot, e = {at}, he was at point dot com",
        "numpy 1.26.4.1 and the 11.2.0.3 patch set; git@github.com:corp/repo.git; 8536-90-4399 and 536-90-43991",
        "release 11.2.0.4, Firefox/115.0.5790.170, id 1536-90-4399, serial 536-90-4399-XY, v=536-90-4399x",
    ],
)
def test_what_only_looks_like_an_address_or_a_number_is_left_alone(text: str) -> None:
    assert values(text) == []


def test_an_address_has_one_surrogate_however_it_is_written() -> None:
    ways = [
        "jane@corp.com",
        "Jane%40corp.com",
        "jane [at] corp [dot] com",
        "jane at corp dot com",
        "ja\u00adne@corp.com",
        "jane@corp&#46;com",
    ]
    assert len({surrogate("EMAIL_ADDRESS", way, "salt") for way in ways}) == 1


HOSTILE = {
    "labels": "password=" * 110_000,
    "labels with values": "password=1aA!xyzw" * 60_000,
    "labels on one line": "password: Aa1!zzzz " * 50_000,
    "foreign labels": "密码：" * 110_000 + "1aA!xyzw",
    "flags": "--token a1b2c3d4e5 " * 50_000,
    "glued flags": " -p1aA!xyzw" * 90_000,
    "logins": "-u a:b1!xxxxx " * 70_000,
    "tags": "<key>1a2b3c4d</" * 60_000,
    "commas": "'key','a1b2c3d4'," * 60_000,
    "pluses": "+1 " * 330_000,
    "numbers": "+1 650 253 0000 " * 30_000,
    "pairs": "01 02 " * 160_000,
    "slashes": "030 / " * 160_000,
    "brackets": "(" * 1_000_000 + "650) 253 0000",
    "escaped": "a%40" * 250_000,
    "entities": "a&#64;a." * 120_000,
    "entities of dots": "a&#46;" * 170_000 + "@a&#46;a",
    "addresses with entities of dots": "a&#46;a@a&#46;a " * 60_000,
    "escapes": 'password": "' + 'a1!\\"' * 200_000,
    "labels with escapes": '"password": "a1!x\\"yzw", ' * 40_000,
    "entities in tags": "<password>a1!&amp;xyz" * 50_000,
    "numbers in a row": "tel. 0171 2345678" + " oder 0172 9876543" * 50_000,
    "spelled": "a (at) a (dot) " * 60_000,
    "spoken": "a at a dot " * 90_000,
    "dots": " dot" * 250_000 + " ",
    "unseen": "a\u200b@\u200ba." * 60_000,
    "users": "a://b:" * 160_000 + "@a",
    "schemes": "Authorization: Basic a1b2c3d4 " * 30_000,
    "headers of keys": "-----BEGIN PRIVATE KEY-----" * 30_000,
}


@pytest.mark.soak_but(
    "labels",
    "flags",
    "tags",
    "pluses",
    "brackets",
    "entities of dots",
    "escapes",
    "dots",
    "users",
    "labels with values",
    "headers of keys",
)
@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_forms_take_linear_time(name: str) -> None:
    values("warm +1 650 253 0000 password=Tr4vel9Xq! jane@corp.com")
    with linear_time():
        values(HOSTILE[name])


def test_every_character_is_read() -> None:
    text = "".join(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    measure_pii(PiiConfig(), pa.array([text, *map(chr, range(0x250))], pa.string()))
    for sign in "@%&([{<-=:,>：":
        assert values(sign) == values(sign * 3) == []


PIECES = st.sampled_from(
    ["password", "key", "пароль", "=", ": ", "：", ",", '"', "'", "<", ">", "--", "-p", "-u ", "a1B2c3D4!", "@", "%40",
     " is", "&#46;", "&amp;", '\\"',
     "&#64;", " [at] ", " at ", " dot ", "corp", ".com", "\u00ad", "\u200b", "+1 ", "650", " 253 ", "(0)", "/", "\n",
     "é"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=12).map("".join))
@settings(max_examples=300)
def test_findings_lie_in_the_text_and_hold_no_line_break_at_an_end(text: str) -> None:
    row = measure_pii(PiiConfig(), pa.array([text], pa.string()))["pii"].to_pylist()[0]
    for finding in row:
        value = text[finding["start"] : finding["end"]]
        assert 0 <= finding["start"] < finding["end"] <= len(text)
        assert value.strip() == value
