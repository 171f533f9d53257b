"""Countries and their continents: the codes of ISO 3166-1 alpha-2, and two codes of no country.

Source of truth: ISO 3166-1; continents as GeoNames (`countryInfo.txt`) assigns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNKNOWN: Final = "XX"
"""Code of an unknown country, and of its continent."""
TOR: Final = "T1"
"""Code that proxies give clients of the Tor network; its continent is unknown."""

_CODES: Final[Mapping[str, str]] = {
    "AF": (
        "AO BF BI BJ BW CD CF CG CI CM CV DJ DZ EG EH ER ET GA GH GM GN GQ GW KE KM LR LS LY MA MG"
        " ML MR MU MW MZ NA NE NG RE RW SC SD SH SL SN SO SS ST SZ TD TG TN TZ UG YT ZA ZM ZW"
    ),
    "AN": "AQ BV GS HM TF",
    "AS": (
        "AE AF AM AZ BD BH BN BT CC CN CX GE HK ID IL IN IO IQ IR JO JP KG KH KP KR KW KZ LA LB LK"
        " MM MN MO MV MY NP OM PH PK PS QA SA SG SY TH TJ TM TR TW UZ VN YE"
    ),
    "EU": (
        "AD AL AT AX BA BE BG BY CH CY CZ DE DK EE ES FI FO FR GB GG GI GR HR HU IE IM IS IT JE LI"
        " LT LU LV MC MD ME MK MT NL NO PL PT RO RS RU SE SI SJ SK SM UA VA"
    ),
    "NA": (
        "AG AI AW BB BL BM BQ BS BZ CA CR CU CW DM DO GD GL GP GT HN HT JM KN KY LC MF MQ MS MX NI"
        " PA PM PR SV SX TC TT US VC VG VI"
    ),
    "OC": "AS AU CK FJ FM GU KI MH MP NC NF NR NU NZ PF PG PN PW SB TK TL TO TV UM VU WF WS",
    "SA": "AR BO BR CL CO EC FK GF GY PE PY SR UY VE",
}
CONTINENTS: Final = frozenset(_CODES)
COUNTRIES: Final[Mapping[str, str]] = {
    country: continent for continent, codes in _CODES.items() for country in codes.split()
}
"""Continents by country."""


def continent_of(country: str) -> str:
    """Return the continent of a country code; XX for XX and T1."""
    return COUNTRIES.get(country, UNKNOWN)
