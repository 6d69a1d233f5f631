"""How personal data is found. `family.py` decides what happens to a finding."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from tasks.stage.config import StageConfig

PatternEntity = Literal[
    "EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS", "MAC_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "CRYPTO",
    "API_KEY", "PASSWORD", "JSON_WEB_TOKEN", "PRIVATE_KEY",
    "US_SSN", "US_ITIN", "UK_NHS", "UK_NINO", "ES_NIF", "ES_NIE", "IT_FISCAL_CODE", "FI_PERSONAL_IDENTITY_CODE",
    "PL_PESEL", "DE_TAX_ID", "SG_NRIC_FIN", "IN_PAN", "IN_AADHAAR", "AU_TFN", "AU_ABN", "CA_SIN", "KR_RRN",
]  # fmt: skip
NameEntity = Literal["PERSON", "LOCATION", "NRP", "ORGANIZATION"]
Action = Literal["redact", "surrogate", "drop", "keep"]  # what happens to a finding

PATTERN_ENTITIES: tuple[PatternEntity, ...] = get_args(PatternEntity)
NAME_ENTITIES: tuple[NameEntity, ...] = get_args(NameEntity)


class PiiConfig(StageConfig):
    """Settings of the search for personal data. Entities have Presidio's names."""

    method: Literal["patterns", "ner", "both"] = Field(
        "patterns",
        description="patterns for data with a fixed form, ner for names in English text (about 20 times slower), or "
        "both",
    )
    entities: list[PatternEntity | NameEntity] = Field(
        [*PATTERN_ENTITIES, "PERSON", "LOCATION", "NRP"],
        min_length=1,
        description="kinds of data to find. ORGANIZATION, which is rarely personal, is off by default as in Presidio",
    )
    window: int = Field(
        60, ge=20, le=1000, description="characters of context on each side of a candidate for recognisers to see"
    )
