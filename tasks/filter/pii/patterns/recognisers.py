"""Presidio's recognisers, one per entity: patterns and checksums, without a language model or the network.

Cards, IBANs, telephone numbers, e-mail addresses and secrets have their own searches (see `find.py`). National IDs are
those that Presidio validates by a checksum or a strict form, except South Africa's, whose recogniser depends on the
date: the same text must give the same findings.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.text.torchless import without_torch

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer


@functools.cache
def recognisers() -> Mapping[str, EntityRecognizer]:
    """The recognisers that see windows of a text, by Presidio's name for the entity. Loaded once per process (about
    1 s)."""
    with without_torch():
        from presidio_analyzer import predefined_recognizers

    return {entity: getattr(predefined_recognizers, name)() for entity, name in _PRESIDIO.items()}


_PRESIDIO = {
    "IP_ADDRESS": "IpRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "US_SSN": "UsSsnRecognizer",
    "US_ITIN": "UsItinRecognizer",
    "UK_NHS": "NhsRecognizer",
    "UK_NINO": "UkNinoRecognizer",
    "ES_NIF": "EsNifRecognizer",
    "ES_NIE": "EsNieRecognizer",
    "IT_FISCAL_CODE": "ItFiscalCodeRecognizer",
    "FI_PERSONAL_IDENTITY_CODE": "FiPersonalIdentityCodeRecognizer",
    "PL_PESEL": "PlPeselRecognizer",
    "DE_TAX_ID": "DeTaxIdRecognizer",
    "SG_NRIC_FIN": "SgFinRecognizer",
    "IN_PAN": "InPanRecognizer",
    "IN_AADHAAR": "InAadhaarRecognizer",
    "AU_TFN": "AuTfnRecognizer",
    "AU_ABN": "AuAbnRecognizer",
    "CA_SIN": "CaSinRecognizer",
    "KR_RRN": "KrRrnRecognizer",
}
