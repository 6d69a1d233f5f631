"""What measuring personal data needs to know. What is done about a finding is decided elsewhere."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from tasks.stage.config import StageConfig

PatternEntity = Literal[
    "EMAIL_ADDRESS", "PHONE_NUMBER", "IP_ADDRESS", "MAC_ADDRESS", "CREDIT_CARD", "IBAN_CODE", "CRYPTO",
    "API_KEY", "JSON_WEB_TOKEN", "PRIVATE_KEY",
    "US_SSN", "US_ITIN", "UK_NHS", "UK_NINO", "ES_NIF", "ES_NIE", "IT_FISCAL_CODE", "FI_PERSONAL_IDENTITY_CODE",
    "PL_PESEL", "DE_TAX_ID", "SG_NRIC_FIN", "IN_PAN", "IN_AADHAAR", "AU_TFN", "AU_ABN", "CA_SIN", "KR_RRN",
]  # fmt: skip
NameEntity = Literal["PERSON", "LOCATION", "NRP", "ORGANIZATION"]
Action = Literal["redact", "surrogate", "drop", "keep"]  # what is done about a finding

PATTERN_ENTITIES: tuple[PatternEntity, ...] = get_args(PatternEntity)
NAME_ENTITIES: tuple[NameEntity, ...] = get_args(NameEntity)


class PiiConfig(StageConfig):
    """How personal data is looked for. Entities are named as Presidio names them."""

    method: Literal["patterns", "ner", "both"] = Field(
        "patterns",
        description="what has a form (patterns), names in English text (ner, about 20 times slower), or both",
    )
    entities: list[PatternEntity | NameEntity] = Field(
        [*PATTERN_ENTITIES, "PERSON", "LOCATION", "NRP"],
        min_length=1,
        description="what is looked for; ORGANIZATION is left out, as Presidio leaves it out: seldom personal",
    )
    window: int = Field(60, ge=20, le=1000, description="characters around a candidate that the recognisers see")
