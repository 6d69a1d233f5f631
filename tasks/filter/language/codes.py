"""ISO 639-3 codes in lid.176's spelling: the two letters of ISO 639-1 if they exist, and the language for a variety.

An unlisted code stays as it is.
"""

from __future__ import annotations

_PAIRS = """
afr:af amh:am arg:an ara:ar arb:ar asm:as ava:av aze:az azj:az bak:ba bel:be bul:bg bho:bh ben:bn bod:bo bre:br bos:bs
cat:ca che:ce cos:co ces:cs chv:cv cym:cy dan:da deu:de div:dv ell:el eng:en epo:eo spa:es est:et ekk:et eus:eu fas:fa
pes:fa prs:fa fin:fi fra:fr fry:fy gle:ga gla:gd glg:gl grn:gn gug:gn guj:gu glv:gv heb:he hin:hi hrv:hr hat:ht hun:hu
hye:hy ina:ia ind:id ile:ie ido:io isl:is ita:it jpn:ja jav:jv kat:ka kaz:kk khm:km kan:kn kor:ko kur:ku kmr:ku kom:kv
kpv:kv cor:kw kir:ky lat:la ltz:lb lim:li lao:lo lit:lt lav:lv lvs:lv mlg:mg plt:mg mkd:mk mal:ml mon:mn khk:mn mar:mr
msa:ms zsm:ms mlt:mt mya:my nep:ne npi:ne nld:nl nno:nn nor:no nob:no oci:oc ori:or ory:or oss:os pan:pa pol:pl pus:ps
pbt:ps pbu:ps por:pt que:qu quy:qu quz:qu roh:rm ron:ro rus:ru san:sa srd:sc snd:sd hbs:sh sin:si slk:sk slv:sl som:so
sqi:sq als:sq aln:sq gsw:als srp:sr sun:su swe:sv swa:sw swh:sw tam:ta tel:te tgk:tg tha:th tuk:tk tgl:tl fil:tl tur:tr
tat:tt uig:ug ukr:uk urd:ur uzb:uz uzn:uz vie:vi vol:vo wln:wa yid:yi ydd:yi yor:yo zho:zh cmn:zh
"""
CODES: dict[str, str] = dict(pair.split(":") for pair in _PAIRS.split())


def code_of(label: str) -> str:
    """The code of a label such as `eng_Latn`, without the script."""
    language = label.partition("_")[0]
    return CODES.get(language, language)
