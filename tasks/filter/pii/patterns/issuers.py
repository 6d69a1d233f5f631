"""Secrets in the forms that issuers give them for scanners: a prefix, and a number of characters after it.

The forms are from the issuers' own documentation. Each pattern begins where a run of letters, digits, `_` and `-`
begins, or at an earlier part of a dotted, slashed or colon-joined token. A text is thus never searched: each run is
examined once, and most runs fail at the alternation of prefixes.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

W = r"[A-Za-z0-9_\-]"
A = r"[A-Za-z0-9]"
H = r"[0-9a-f]"

# (issuer and kind, prefix, rest)
FORMS: tuple[tuple[str, str, str], ...] = (
    ("AWS access key", r"(?:AKIA|ASIA|ABIA|ACCA)", r"[A-Z2-7]{16}"),
    ("AWS Bedrock key", "ABSK", r"[A-Za-z0-9+/]{109,269}={0,2}"),
    ("GitHub token", "gh[pousr]_", A + "{36,251}"),
    ("GitHub fine-grained token", "github_pat_", r"[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    ("GitLab token", r"gl(?:pat|dt|ptt|soat|rt|cbt|ft|imt|agent|oas|ffct)-", W + r"{20,300}(?:\.[0-9a-z]{9})?"),
    ("GitLab runner token", "GR1348941", W + "{20}"),
    ("Slack token", r"xox[abeoprs]-", r"(?:\d-)?[A-Za-z0-9-]{18,200}"),
    ("Slack rotated token", r"xoxe\.xox[bp]-", r"\d-[A-Za-z0-9]{100,180}"),
    ("Slack app token", "xapp-", r"\d-[A-Z0-9]+-\d+-[a-z0-9]{32,80}"),
    ("Slack webhook", r"hooks\.slack\.com/(?:services|workflows|triggers)/", r"[A-Za-z0-9+/]{40,80}"),
    ("Stripe key", r"(?:sk|rk)_(?:live|test|prod)_", A + "{16,247}"),
    ("Stripe webhook secret", "whsec_", r"[A-Za-z0-9+/=]{32,64}"),
    ("SendGrid key", r"SG\.", W + r"{20,24}\." + W + "{39,50}"),
    ("Sendinblue key", "xkeysib-", H + "{64}-" + A + "{16}"),
    ("Mailgun key", "key-", "[0-9a-f]{32}"),
    ("Mailgun signing key", "(?=[0-9a-f]{32}-)", "[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}"),
    ("Mailchimp key", r"(?=[0-9a-f]{32}-us\d)", r"[0-9a-f]{32}-us\d{1,2}"),
    ("Twilio key", "SK", "[0-9a-f]{32}"),
    ("Google API key", "AIza", W + "{35}"),
    ("Google OAuth secret", "GOCSPX-", W + "{28}"),
    ("Google access token", r"ya29\.", W + r"{20,1000}"),
    ("Google refresh token", r"1//0", W + "{35,250}"),
    ("OpenAI key", r"sk-(?:proj|svcacct|admin|None)-", W + "{40,200}"),
    ("Anthropic key", r"sk-ant-", W + "{32,200}"),
    ("OpenRouter key", r"sk-or-", W + "{32,200}"),
    ("sk- key", r"sk-", A + "{32,64}"),
    ("Hugging Face token", r"(?:hf_|api_org_)", A + "{34,40}"),
    ("Replicate token", "r8_", A + "{37}"),
    ("Groq key", "gsk_", A + "{52}"),
    ("xAI key", "xai-", A + "{70,90}"),
    ("Perplexity key", "pplx-", A + "{48,64}"),
    ("npm token", "npm_", A + "{36}"),
    ("PyPI token", "pypi-AgE", W + "{50,1000}"),
    ("RubyGems token", "rubygems_", "[0-9a-f]{48}"),
    ("crates.io token", "cio", A + "{32}"),
    ("NuGet key", "oy2", "[a-z0-9]{43}"),
    ("Clojars token", "CLOJARS_", "[a-z0-9]{60}"),
    ("Docker token", r"dckr_(?:pat|oat)_", W + "{27,40}"),
    ("Telegram bot token", r"\d{8,10}:AA", W + "{33}"),
    ("Discord bot token", r"[MNO][A-Za-z0-9_\-]{23,27}\.", W + r"{6}\." + W + "{27,40}"),
    ("Discord webhook", r"discord(?:app)?\.com/api/webhooks/\d{17,20}/", W + "{60,80}"),
    ("DigitalOcean token", r"do[opr]_v1_", "[0-9a-f]{64}"),
    ("Shopify token", r"shp(?:at|ca|pa|ss)_", "[0-9a-fA-F]{32}"),
    ("Shippo token", r"shippo_(?:live|test)_", "[0-9a-fA-F]{40}"),
    ("Square token", r"sq0(?:atp|csp|idp)-", W + r"{22,43}"),
    ("Square access token", "EAAA", W + "{60}"),
    ("Facebook token", r"EAA[MC]", A + "{100,300}"),
    ("Heroku token", "HRKU-", W + "{36,64}"),
    ("Databricks token", "dapi", r"[0-9a-f]{32}(?:-\d)?"),
    ("Vault token", r"hv[sbr]\.", W + "{24,300}"),
    ("Terraform token", A + r"{14}\.atlasv1\.", W + "{60,70}"),
    ("Postman key", "PMAK-", "[0-9a-f]{24}-[0-9a-f]{34}"),
    ("New Relic key", r"NR(?:AK|II|JS|BR|RA)-", W + "{19,40}"),
    ("New Relic licence key", r"(?=[0-9a-f]{36}(?:FFFF)?NRAL|[0-9a-z]{36}NRAL)", "[0-9a-z]{36}(?:FFFF)?NRAL"),
    ("Sentry token", r"sntry[su]_", r"[A-Za-z0-9+/=_]{60,500}"),
    ("Grafana token", r"glsa_", A + "{32}_[0-9A-Fa-f]{8}"),
    ("Grafana Cloud token", r"glc_", r"[A-Za-z0-9+/]{32,400}={0,3}"),
    ("Linear key", "lin_(?:api|oauth)_", A + "{40,64}"),
    ("Notion token", "ntn_", r"\d{11}" + A + "{35}"),
    ("Airtable token", "pat" + A + r"{14}\.", "[0-9a-f]{64}"),
    ("Figma token", r"figd_", W + "{40,60}"),
    ("Supabase token", "sbp_", "[0-9a-f]{40}"),
    ("PlanetScale token", r"pscale_(?:tkn|oauth|pw)_", r"[\w=\-]{32,64}"),
    ("Fly token", "fo1_", W + "{43}"),
    ("Fly token", r"fm(?:1[ar]|2)_", r"[A-Za-z0-9+/]{100,2000}={0,3}"),
    ("Sourcegraph token", "sgp_", r"(?:(?:[0-9a-fA-F]{16}|local)_)?[0-9a-fA-F]{40}"),
    ("Doppler token", r"dp\.(?:pt|st|ct|scim|audit)\.", A + "{40,44}"),
    ("Pulumi token", "pul-", "[0-9a-f]{40}"),
    ("Atlassian token", "ATATT3", W + "{150,200}=?"),
    ("Bitbucket token", "ATBB", A + "{24,40}"),
    ("Adobe secret", "p8e-", "[a-zA-Z0-9]{32}"),
    ("Alibaba key", "LTAI", A + "{20}"),
    ("Dropbox token", r"sl\.", W + "{130,200}"),
    ("Prefect token", r"pn[ub]_", A + "{36}"),
    ("Artifactory key", "AKCp", A + "{69}"),
    ("Typeform token", "tfp_", W + r"{40,59}"),
    ("EasyPost key", r"EZ[AT]K", A + "{54}"),
    ("Flutterwave key", r"FLW(?:SECK|PUBK)_TEST-", "[0-9a-hA-H]{32}-X"),
    ("Mapbox secret", r"sk\.eyJ", W + r"{60,200}\.[\w\-]{22}"),
    ("age key", "AGE-SECRET-KEY-1", "[0-9A-Z]{58}"),
    ("1Password token", "ops_eyJ", r"[A-Za-z0-9+/]{250,}={0,3}"),
    ("1Password key", "A3-", r"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}"),
    ("OpenShift token", "sha256~", W + "{43}"),
    ("Netlify token", "nfp_", A + "{36,40}"),
    ("Tailscale key", "tskey-", r"[a-z]+-[A-Za-z0-9]+-[A-Za-z0-9]{20,40}"),
    ("Buildkite token", "bkua_", "[0-9a-f]{40}"),
    ("CircleCI token", "CCIPAT_", A + r"{20,24}_[0-9a-f]{40}"),
    ("SonarQube token", r"sq[upa]_", "[0-9a-f]{40}"),
    ("Contentful token", "CFPAT-", W + "{43}"),
    ("Duffel token", r"duffel_(?:test|live)_", W + "{43}"),
    ("ReadMe key", "rdme_", "[a-z0-9]{70}"),
    ("Cloudflare origin key", r"v1\.0-", "[0-9a-f]{24}-[0-9a-f]{146}"),
    ("Dynatrace token", r"dt0c01\.", A + r"{24}\." + A + "{64}"),
    ("AWS Bedrock short-lived key", "bedrock-api-key-", r"[A-Za-z0-9+/]{100,4000}={0,2}"),
    ("GitLab routable token", r"glpat-", W + r"{27,300}\.[0-9a-z]{2}[0-9a-z]{7}"),
    ("HubSpot token", r"pat-(?:na|eu)\d-", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ("Plaid token", r"access-(?:sandbox|development|production)-", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ("Infracost key", "ico-", A + "{32}"),
    ("Frame.io token", "fio-u-", W + "{64}"),
    ("42 secret", r"s-s4t2(?:ud|af)-", "[0-9a-f]{64}"),
    ("Scalingo token", r"tk-us-", W + "{48}"),
    ("Settlemint token", r"sm_[aps]at_", A + "{16}"),
    ("Lob key", r"(?:live|test)_(?:pub_)?(?=[0-9a-f]{31})", r"[0-9a-f]{31}(?:[0-9a-f]{4})?"),
    ("GoCardless token", "live_", W + "{40}"),
    ("Octopus Deploy key", "API-", "[A-Z0-9]{26}"),
    ("MaxMind key", A + "{6}_" + A + "{29}_", "mmk"),
    ("Harness key", r"[ps]at\." + W + r"{22}\.", r"[0-9a-f]{24}\." + A + "{20}"),
    ("ClickHouse key", "4b1d", A + "{38}"),
    ("JFrog reference token", "cmVmdGtu", A + "{56}"),
    ("Defined Networking token", "dnkey-", W + "{26}-" + W + "{52}"),
    (
        "Authress key",
        r"(?:sc|ext|scauth|authress)_[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_\-]",
        r"[a-z0-9\-]{10,32}\.[A-Za-z0-9+/_=\-]{30,120}",
    ),
    ("Yandex token", r"t1\.[A-Z0-9a-z_\-]+={0,2}\.", W + r"{86}={0,2}"),
    ("Yandex key", r"(?:AQVN|YC)", r"(?:(?<=AQVN)" + W + r"{35,38}|(?<=YC)" + W + r"{38})"),
    ("Twitter bearer token", "A{22}", r"[A-Za-z0-9%]{60,100}"),
    ("Facebook app token", r"\d{15,16}\|", W + "{27}"),
    (
        "Teams webhook",
        r"webhook\.office\.com/webhookb2/",
        r"[0-9a-f\-]{36}@[0-9a-f\-]{36}/IncomingWebhook/[0-9a-z]{32}/[0-9a-f\-]{36}",
    ),
    ("Langfuse key", r"sk-lf-", r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    ("NVIDIA key", "nvapi-", W + "{60,70}"),
    ("Tavily key", r"tvly-(?:dev-|prod-)?", A + "{32}"),
    ("Pinecone key", "pcsk_", A + "{5,8}_" + A + "{60,70}"),
    ("LangSmith key", r"lsv2_(?:pt|sk)_", r"[0-9a-f]{32}_[0-9a-f]{10}"),
    ("Resend key", "re_", A + "{8}_" + A + "{24}"),
    ("Firecrawl key", "fc-", "[0-9a-f]{32}"),
    ("Vercel Blob token", "vercel_blob_rw_", A + "{16}_" + A + "{30}"),
    ("Render key", "rnd_", A + "{28,32}"),
    ("PostHog key", "phx_", A + "{43}"),
    ("Azure client secret", r"[A-Za-z0-9_.]{3}\dQ~", r"[A-Za-z0-9_~.\-]{31,34}"),
)


class Form(NamedTuple):
    """The form of an issuer's secrets."""

    name: str
    pattern: re.Pattern[str]


@functools.cache
def _forms() -> tuple[Form, ...]:
    return tuple(Form(name, re.compile(f"{prefix}{rest}(?![A-Za-z0-9_])")) for name, prefix, rest in FORMS)


@functools.cache
def _gate() -> re.Pattern[str]:
    return re.compile("|".join(prefix for _, prefix, _ in FORMS))


_HEAD = re.compile(r"[A-Za-z0-9_\-.:/~|@]{1,120}\Z")
_HEADS = re.compile(r"(?<![A-Za-z0-9_\-])[A-Za-z0-9_]")


def secret_at(text: str, start: int, end: int) -> tuple[str, int, int] | None:
    """(issuer, start, end) of the secret that contains the run of letters and digits text[start:end]."""
    for first in _beginnings(text, start):
        if _gate().match(text, first):
            for form in _forms():
                match = form.pattern.match(text, first)
                if match is not None and match.end() > start:
                    return form.name, *match.span()
    return None


def _beginnings(text: str, start: int) -> list[int]:
    """The possible starts of a token that contains this run: the run, and the parts joined to it from before."""
    if text[start - 1 : start] not in (".", ":", "/", "~", "|"):
        return [start]
    head = _HEAD.search(text, max(start - 120, 0), start)
    before = [match.start() for match in _HEADS.finditer(text, head.start(), start)] if head else []
    return [start, *reversed(before)]
