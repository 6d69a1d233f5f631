"""`python -m benchmarks.filter.pii_secrets`: keys, tokens and passwords by kind, beside gitleaks and detect-secrets.

Secrets are drawn in the formats that their issuers document and put into the places where secrets stand: shell, YAML,
JSON, Python, a command line, a sentence. Places are halved: the rules were made with one half in sight; the other is
held out, though what was missed in it has been read after an earlier measurement, so it is not unseen.
`--gitleaks FOLDER` (a checkout) runs its rules, keywords and entropies by the package `regex`, without its stop words,
and reads the examples that its rules are validated with; detect-secrets runs with its default plugins where it can be
imported. `--code MB` counts findings in the source of installed packages.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import random
import re
import string
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.measure import measure_pii

SECRETS = ("API_KEY", "PASSWORD", "JSON_WEB_TOKEN", "PRIVATE_KEY")
ALNUM, HEX, LOWER, UPPER, URLSAFE, BASE64 = (
    string.ascii_letters + string.digits,
    "0123456789abcdef",
    string.ascii_lowercase + string.digits,
    string.ascii_uppercase + string.digits,
    string.ascii_letters + string.digits + "_-",
    string.ascii_letters + string.digits + "+/",
)
# {ALPHABET:n}: so many characters; the secret itself, or between « and » where more is needed around it
FORMATS = {
    "AWS access key": "AKIA{BASE32:16}",
    "AWS secret key, by name": "AWS_SECRET_ACCESS_KEY=«{BASE64:40}»",
    "GitHub token": "ghp_{ALNUM:36}",
    "GitHub fine-grained": "github_pat_{ALNUM:22}_{ALNUM:59}",
    "GitLab": "glpat-{URLSAFE:20}",
    "Slack bot": "xoxb-{DIGITS:12}-{DIGITS:13}-{ALNUM:24}",
    "Slack webhook": "https://«hooks.slack.com/services/T{UPPER:10}/B{UPPER:10}/{ALNUM:24}»",
    "Stripe": "sk_live_{ALNUM:24}",
    "Stripe restricted": "rk_live_{ALNUM:99}",
    "Stripe webhook": "whsec_{ALNUM:32}",
    "SendGrid": "SG.{URLSAFE:22}.{URLSAFE:43}",
    "Mailgun": "key-{HEX:32}",
    "Twilio": "SK{HEX:32}",
    "Twilio token, by name": "TWILIO_AUTH_TOKEN=«{HEX:32}»",
    "Google API key": "AIza{URLSAFE:35}",
    "Google OAuth secret": "GOCSPX-{URLSAFE:28}",
    "GCP service account": '{"type": "service_account", "private_key_id": "«{HEX:40}»"}',
    "OpenAI": "sk-proj-{URLSAFE:74}T3BlbkFJ{URLSAFE:74}",
    "OpenAI, old": "sk-{ALNUM:20}T3BlbkFJ{ALNUM:20}",
    "Anthropic": "sk-ant-api03-{URLSAFE:93}AA",
    "Hugging Face": "hf_{LETTERS:34}",
    "npm": "npm_{ALNUM:36}",
    "PyPI": "pypi-AgEIcHlwaS5vcmc{URLSAFE:120}",
    "Docker": "dckr_pat_{URLSAFE:27}",
    "Telegram": "{DIGIT9}:AA{URLSAFE:33}",
    "Discord": "M{ALNUM:23}.G{URLSAFE:5}.{URLSAFE:38}",
    "DigitalOcean": "dop_v1_{HEX:64}",
    "Shopify": "shpat_{HEX:32}",
    "Square": "sq0csp-{URLSAFE:43}",
    "Heroku, by name": "HEROKU_API_KEY=«{HEX:8}-{HEX:4}-{HEX:4}-{HEX:4}-{HEX:12}»",
    "Databricks": "dapi{HEX:32}",
    "Vault": "hvs.{URLSAFE:95}",
    "Terraform": "{ALNUM:14}.atlasv1.{URLSAFE:67}",
    "Postman": "PMAK-{HEX:24}-{HEX:34}",
    "New Relic": "NRAK-{UPPER:27}",
    "Sentry": "sntryu_{HEX:64}",
    "Grafana": "glsa_{ALNUM:32}_{HEX:8}",
    "Azure storage": "DefaultEndpointsProtocol=https;AccountName=corp;AccountKey=«{BASE64:86}==»;EndpointSuffix=core",
    "JSON web token": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiI{ALNUM:24}.{URLSAFE:43}",
    "Bearer header": "Authorization: Bearer «{URLSAFE:40}»",
    "Basic header": "Authorization: Basic «{BASE64:32}»",
    "token by name": "SERVICE_TOKEN=«{ALNUM:32}»",
    "secret by name": "client_secret: «{HEX:40}»",
    "password in URL": "postgres://reporting:«{PASSWORD}»@db.corp.net:5432/sales",
    "password by name": "db_password: «{PASSWORD}»",
    "password in a sentence": "User: bob / Password: «{PASSWORD}» until Monday",
    "password flag": "backup --host db --password «{PASSWORD}» --all",
    "password of MySQL": "mysql -u root -p«{PASSWORD}» sales",
    "password of curl": "curl -u bob:«{PASSWORD}» https://corp.net/v1",
    "password in XML": "<password>«{PASSWORD}»</password>",
    "password, German": "Benutzer: bob, Passwort: «{PASSWORD}»",
    "password, French": "Mot de passe : «{PASSWORD}»",
    "password, Russian": "Логин: bob, пароль: «{PASSWORD}»",
    "password, Chinese": "您的密码：«{PASSWORD}»",
    "key in a sentence": "Your API key: «{ALNUM:32}»",
    "HubSpot": "pat-na1-{HEX:8}-{HEX:4}-{HEX:4}-{HEX:4}-{HEX:12}",
    "Plaid": "access-production-{HEX:8}-{HEX:4}-{HEX:4}-{HEX:4}-{HEX:12}",
    "Harness": "pat.{URLSAFE:22}.{HEX:24}.{ALNUM:20}",
    "MaxMind": "{ALNUM:6}_{ALNUM:29}_mmk",
    "Octopus Deploy": "API-{UPPER:26}",
    "Facebook app": "{DIGITS:15}|{URLSAFE:27}",
    "RSA key": "«-----BEGIN RSA PRIVATE KEY-----\n{PEM}\n-----END RSA PRIVATE KEY-----»",
    "OpenSSH key": "«-----BEGIN OPENSSH PRIVATE KEY-----\n{PEM}\n-----END OPENSSH PRIVATE KEY-----»",
    "encrypted key": "«-----BEGIN ENCRYPTED PRIVATE KEY-----\n{PEM}\n-----END ENCRYPTED PRIVATE KEY-----»",
    "EC key in JSON": '"«-----BEGIN EC PRIVATE KEY-----\\n{PEMJ}\\n-----END EC PRIVATE KEY-----»\\n"',
    "PGP key": "«-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{PEM}\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----»",
}
PLACES = (
    "export SERVICE_KEY={}",
    "SERVICE_KEY={}\nDEBUG=1",
    "  service_key: {}\n  region: eu",
    '{{"serviceKey": "{}"}}',
    'client = Service("{}")',
    "service_key = '{}'",
    "Use {} to log in.",
    "curl https://corp.net/v1?k=1 -H 'X-Service: {}'",
    "`{}`",
    "| staging | {} |",
    "--service-key={} --verbose",
    "# {}\n",
    '<add key="service" value="{}" />',
    "service.key={}",
)
ALONE = ("{}", "first line\n{}\nlast line", "    {}\n", "```\n{}\n```", "# {}", "$ {}")
NEUTRAL = (
    "export BUILD={}",
    "BUILD={}\nDEBUG=1",
    "  build: {}\n  region: eu",
    '{{"build": "{}"}}',
    'client = Build("{}")',
    "build = '{}'",
    "See {} for more.",
    "`{}`",
    "| staging | {} |",
    "--build={} --verbose",
    "# {}\n",
    "build.id={}",
)
PARTS = ("places in sight while the rules were made", "held-out places")
# What is no secret, where nothing says that it is one
HARMLESS = {
    "UUID": "{HEX:8}-{HEX:4}-{HEX:4}-{HEX:4}-{HEX:12}",
    "git commit": "{HEX:40}",
    "short commit": "{HEX:7}",
    "SHA-256": "sha256:{HEX:64}",
    "integrity": "sha512-{BASE64:86}==",
    "base64 image": "data:image/png;base64,iVBORw0KGgo{BASE64:400}",
    "placeholder": "<your-api-key>",
    "variable": "${SERVICE_TOKEN}",
    "template": "{{ secrets.TOKEN }}",
    "stars": "********",
    "AWS example": "AKIAIOSFODNN7EXAMPLE",
    "x": "sk_live_xxxxxxxxxxxxxxxxxxxxxxxx",
    "identifier": "get_access_token_from_request_2",
    "module": "tasks.filter.pii.patterns_v2",
    "version": "1.26.4.1",
    "timestamp": "2026-11-24T02:30:18.123456Z",
    "URL": "https://corp.net/a/b-2026/c?d=1",
    "ssh remote": "git@github.com:corp/repo.git",
    "public key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{BASE64:43} host",
    "certificate": "-----BEGIN CERTIFICATE-----\n{PEM}\n-----END CERTIFICATE-----",
    "ETag": 'W/"{HEX:32}"',
    "DOI": "10.1109/5.771073",
    "css": "sk-toggleable__label-arrow-primary-2",
    "wheel": "numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl",
    "colour": "#a1b2c3d4",
    "password rule": "Password: at least 8 characters, 1 digit",
    "password in code": "connect(user, password=config.DB_PASS2)",
    "flag": "--token-file /run/secrets/token1 --max-tokens 4096",
}


def drawn(form: str, draw: random.Random) -> str:
    """A secret of a format."""
    alphabets = {
        "ALNUM": ALNUM,
        "HEX": HEX,
        "UPPER": UPPER,
        "URLSAFE": URLSAFE,
        "BASE64": BASE64,
        "DIGITS": string.digits,
        "BASE32": string.ascii_uppercase + "234567",
        "LETTERS": string.ascii_letters,
    }

    def fill(match: re.Match[str]) -> str:
        name, _, count = match[1].partition(":")
        if name in ("PEM", "PEMJ"):
            lines = ["".join(draw.choices(BASE64, k=64)) for _ in range(12)]
            return ("\n" if name == "PEM" else "\\n").join(lines)
        if name == "DIGIT9":
            return str(draw.randrange(10**8, 10**10))
        if name == "PASSWORD":
            return (
                "".join(draw.sample(["Tr4", "vel", "9Xq", "zu7", "Kb2", "mop", "R8s"], 4))
                + draw.choice("!#_-.")
                + draw.choice(ALNUM)
            )
        return "".join(draw.choices(alphabets[name], k=int(count)))

    return re.sub(r"\{([A-Z0-9]+(?::\d+)?)\}", fill, form)


def half(name: str) -> int:
    """0 for what may be looked at, 1 for what is reported."""
    return hashlib.sha1(name.encode()).digest()[0] % 2


def cases(part: int, forms: dict[str, str], each: int) -> Iterator[tuple[str, str, int, int]]:
    """(kind, text, start, end) of secrets in the places of a half."""
    for kind, form in forms.items():
        draw = random.Random(f"{kind} {part}")
        every = NEUTRAL if forms is HARMLESS else ALONE if "«" in form else PLACES
        places = [place for place in every if half(f"{kind}{place}") == part]
        for number in range(each if places else 0):
            value = drawn(form, draw)
            _, mark, rest = value.partition("«")
            secret = rest.partition("»")[0] if mark else value
            place = places[number % len(places)]
            text = place.replace("{{", "{").replace("}}", "}").replace("{}", value.replace("«", "").replace("»", ""))
            start = text.index(secret)
            yield kind, text, start, start + len(secret)


Finder = Callable[[str], list[tuple[int, int]]]


def ours(text: str) -> list[tuple[int, int]]:
    """Where we find secrets."""
    row = measure_pii(PiiConfig(entities=list(SECRETS)), pa.array([text], pa.string()))["pii"].to_pylist()[0]
    return [(one["start"], one["end"]) for one in row]


def gitleaks(folder: Path) -> Finder:
    """Its rules: keywords, pattern, entropy of the secret."""
    import regex

    rules: list[tuple[list[str], Any, float, int]] = []
    for rule in tomllib.loads((folder / "config" / "gitleaks.toml").read_text())["rules"]:
        if "regex" in rule:
            pattern = regex.compile(rule["regex"].replace(r"\z", r"\Z"), regex.V1)
            rules.append((rule.get("keywords", []), pattern, rule.get("entropy", 0.0), rule.get("secretGroup", 0)))

    def find(text: str) -> list[tuple[int, int]]:
        lower, found = text.lower(), []
        for keywords, pattern, least, group in rules:
            if keywords and not any(keyword in lower for keyword in keywords):
                continue
            for match in pattern.finditer(text):
                groups = [number for number in range(1, len(match.groups()) + 1) if match[number]]
                number = group or (groups[0] if groups else 0)
                if _entropy(match[number]) > least:
                    found.append(match.span(number))
        return found

    return find


def _entropy(value: str) -> float:
    counts = Counter(value).values()
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts)


def detect_secrets() -> Finder:
    """Its default plugins and filters on a file, line by line."""
    scan = importlib.import_module("detect_secrets.core.scan")
    default_settings = importlib.import_module("detect_secrets.settings").default_settings

    def find(text: str) -> list[tuple[int, int]]:
        lines = text.splitlines(keepends=True)
        found = []
        with tempfile.TemporaryDirectory() as folder, default_settings():
            path = Path(folder) / "text.txt"
            path.write_text(text)
            for secret in scan.scan_file(str(path)):
                line = lines[secret.line_number - 1]
                value = secret.secret_value or ""
                at = sum(map(len, lines[: secret.line_number - 1])) + max(line.find(value), 0)
                # It tells a private key by its first line
                found.append((at, len(text) if "PRIVATE KEY" in value else at + len(value)))
        return found

    return find


def recall(tools: dict[str, Finder], part: int, each: int, misses: bool) -> None:
    """Found by kind: a secret counts when most of its characters are in a finding."""
    names = list(tools)
    print(f"\n### Secrets found, {PARTS[part]}\n")
    print(f"| kind | drawn | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    counts: dict[str, Counter[str]] = {}
    for kind, text, start, end in cases(part, FORMATS, each):
        count = counts.setdefault(kind, Counter())
        count["drawn"] += 1
        for name, find in tools.items():
            hit = any(2 * (min(end, last) - max(start, first)) > end - start for first, last in find(text))
            count[name] += hit
            if misses and name == "ours" and not hit:
                print(f"MISSED {kind}: {text!r}")
    total: Counter[str] = Counter()
    for kind, count in counts.items():
        total.update(count)
        print(f"| {kind} | {count['drawn']} | {_shares(count, names)} |")
    print(f"| all | {total['drawn']} | {_shares(total, names)} |")


def _shares(count: Counter[str], names: list[str]) -> str:
    return " | ".join(f"{count[name] / count['drawn']:.3f}" for name in names)


def alarms(tools: dict[str, Finder], part: int, each: int, misses: bool) -> None:
    """Findings in what is no secret."""
    names = list(tools)
    print(f"\n### Found in what is no secret, {PARTS[part]}\n")
    print(f"| kind | drawn | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    counts: dict[str, Counter[str]] = {}
    for kind, text, start, end in cases(part, HARMLESS, each):
        count = counts.setdefault(kind, Counter())
        count["drawn"] += 1
        for name, find in tools.items():
            hit = any(first < end and start < last for first, last in find(text))
            count[name] += hit
            if misses and name == "ours" and hit:
                print(f"WRONG {kind}: {text!r}")
    for kind, count in counts.items():
        print(f"| {kind} | {count['drawn']} | {_shares(count, names)} |")


def published(folder: Path, find: Finder, misses: bool) -> None:
    """The examples in gitleaks' rules: those it must find, and those it must not. Those made at random are not read."""
    texts: dict[str, list[str]] = {"tps": [], "fps": []}
    for path in sorted((folder / "cmd" / "generate" / "config" / "rules").glob("*.go")):
        source = path.read_text()
        for block in re.finditer(
            r"(tps|fps)\s*:?=\s*(?:\[\]string\{|append\((?:tps|fps),)(.*?)\n\t[})]", source, re.DOTALL
        ):
            for line in re.finditer(r"^\s*(?:`([^`]*)`|\"((?:[^\"\\]|\\.)*)\"),", block[2], re.MULTILINE):
                text = line[1] if line[1] is not None else json.loads(f'"{line[2]}"')
                texts[block[1]].append(text)
    found = {kind: [bool(find(text)) for text in rows] for kind, rows in texts.items()}
    print(
        f"\nOf gitleaks' own examples, written out: {sum(found['tps'])} of {len(found['tps'])} secrets found; "
        f"{sum(found['fps'])} of {len(found['fps'])} false ones."
    )
    if misses:
        for kind, wanted in (("tps", True), ("fps", False)):
            for text, hit in zip(texts[kind], found[kind], strict=True):
                if hit != wanted:
                    print(kind, repr(text[:200]))


def code(megabytes: float, part: int) -> list[str]:
    """Source and data files of installed packages of a half, so many MB."""
    site = Path(str(importlib.metadata.distribution("pyarrow").locate_file("")))
    files = sorted(
        p for p in site.rglob("*") if p.suffix in (".py", ".md", ".rst", ".json", ".txt", ".yaml", ".js", ".toml")
    )
    random.Random(1).shuffle(files)
    texts: list[str] = []
    size = 0
    for path in files:
        if half(path.relative_to(site).parts[0].split("-")[0].lower()) == part and path.stat().st_size < 400_000:
            texts.append(path.read_text("utf-8", errors="replace"))
            size += len(texts[-1])
            if size > megabytes * 1e6:
                break
    return texts


def in_code(tools: dict[str, Finder], megabytes: float, part: int, show: int) -> None:
    """Findings per MB of code."""
    texts = code(megabytes, part)
    size = sum(len(text) for text in texts) / 1e6
    print(f"\n### Findings in {size:.0f} MB of installed packages\n\n| tool | findings | per MB |\n|---|---|---|")
    for name, find in tools.items():
        shown = [text[max(a - 50, 0) : b + 5] for text in texts for a, b in find(text)]
        print(f"| {name} | {len(shown)} | {len(shown) / size:.2f} |")
        for value in shown[:show] if name == "ours" else ():
            print(f"    {value!r}")


def main() -> None:
    """Read the options, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--half", type=int, choices=(0, 1), default=1, help="0: the half that was looked at (default 1)"
    )
    parser.add_argument("--each", type=int, default=30, help="secrets of a kind (default 30)")
    parser.add_argument("--gitleaks", type=Path, help="a checkout of gitleaks")
    parser.add_argument("--code", type=float, default=0, help="MB of installed packages to search")
    parser.add_argument("--misses", action="store_true", help="print what is missed or wrongly found by ours")
    parser.add_argument("--show", type=int, default=0, help="so many of our findings in code")
    options = parser.parse_args()
    tools: dict[str, Finder] = {"ours": ours}
    if options.gitleaks:
        tools["gitleaks"] = gitleaks(options.gitleaks)
    if importlib.util.find_spec("detect_secrets"):
        tools["detect-secrets"] = detect_secrets()
    recall(tools, options.half, options.each, options.misses)
    alarms(tools, options.half, options.each, options.misses)
    if options.gitleaks:
        published(options.gitleaks, ours, options.misses)
    if options.code:
        in_code(tools, options.code, options.half, options.show)


if __name__ == "__main__":
    main()
