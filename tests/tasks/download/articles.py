"""Twenty articles with the constructs that real ones have, and the text that a reader of each would see."""

from __future__ import annotations

from typing import NamedTuple


class Article(NamedTuple):
    """An article: its title, its markup, its text, and the templates that have none."""

    title: str
    markup: str
    text: str
    lost: tuple[str, ...] = ()


ARTICLES = [
    Article(
        "Aldbrook",
        """{{Short description|Town in Marrowshire}}
{{Use British English|date=May 2014}}
{{Infobox settlement
| name = Aldbrook <!-- not the river -->
| population = {{formatnum:12345}}
| coordinates = {{coord|51|2|N|1|3|W|display=inline,title}}
}}
[[File:Aldbrook mill.jpg|thumb|right|The [[watermill|mill]] of {{convert|9|m}}]]
'''Aldbrook''' ({{IPAc-en|ˈ|ɔː|l|d|b|r|ʊ|k}}; {{lang-cy|Hen Nant}}) is a [[market town]] of \
{{convert|5|to|10|km2|sqmi}} in [[Marrowshire (county)|Marrowshire]], {{as of|2010|5|lc=y}} with \
12,345 people.<ref name="c">{{cite web|url=x}}</ref>\
<ref name=c />{{citation needed|date=May 2012}}""",
        "Aldbrook (Welsh: Hen Nant) is a market town of 5 to 10 km² in Marrowshire, as of May 2010 with 12,345 people.",
    ),
    Article(
        "Edda Marsh",
        """'''Edda Marsh''' ({{birth date|1871|3|14|df=yes}}{{snd}}{{death date and age|1940|1|2|1871|3|14|df=y}}) \
was a miller. She {{circa|1890}} married [[Tom Marsh|Tom]] {{nowrap|J. Marsh}}.{{sfn|Hall|1990|p=3}}

== Life ==
=== Youth ===
{{main|Youth of Edda Marsh}}
She said:
{{quote|The wheel turns, and so do I.|Edda Marsh|''Letters''}}
Then she left.
=== Works ===
== See ==
== References ==
{{reflist|30em}}
== External links ==
* {{official website|http://example.org}}
{{Authority control}}
{{DEFAULTSORT:Marsh, Edda}}
[[Category:Millers]]
[[de:Edda Marsh]]""",
        """Edda Marsh (14 March 1871 – 2 January 1940 (aged 68)) was a miller. She c. 1890 married Tom J. Marsh.

## Life

### Youth

She said:

The wheel turns, and so do I.
— Edda Marsh

Then she left.""",
    ),
    Article(
        "Energy of a wheel",
        """The energy is <math>E = \\tfrac{1}{2} I \\omega^2</math>, in m<sup>2</sup>·s<sup>−2</sup>, of \
H<sub>2</sub>O at {{val|1.5|e=3|u=kg/m3}}. The 1<sup>st</sup> law:
<math display="block">
\\Delta U = Q - W
</math>
With x<sup>n+1</sup>, {{frac|1|2}}, {{sqrt|2}}, {{math|''a'' < ''b''}} and {{chem|H|2|SO|4}} or {{chem2|CO2}}.""",
        """The energy is $E = \\tfrac{1}{2} I \\omega^2$, in m²·s⁻², of H₂O at 1.5×10³ kg/m3. The 1st law:

$$\\Delta U = Q - W$$

With xⁿ⁺¹, 1/2, √2, a < b and H₂SO₄ or CO₂.""",
    ),
    Article(
        "Kinds of mill",
        """There are:
* [[Watermill]]s
** overshot
** undershot
* [[Windmill]]s
# first
# second
## second a
# third
; Post mill : turns whole
; Tower mill
: turns its cap
And no more.""",
        """There are:
- Watermills
  - overshot
  - undershot
- Windmills
1. first
2. second
  1. second a
3. third
Post mill: turns whole
Tower mill
turns its cap
And no more.""",
    ),
    Article(
        "Harvest by year",
        """Before.
{| class="wikitable sortable"
|+ Harvests of {{nowrap|the valley}}
! Year !! Tons<ref>x</ref>
|-
| 1900 || style="text-align:right" | {{nts|12}}
|-
| 1901
| [[File:x.png|20px]] 13
|}
After.""",
        "Before.\n\nAfter.",
    ),
    Article(
        "Links",
        """See [[mill (grinding)#History|its history]], [[cog]]s, [[:Category:Mills]], [[:fr:Moulin]], \
[[wikt:mill|mill]], [[#Section|below]], \
[[Image:a.png|thumb|[[nested]] caption]] [http://example.org the site], [http://example.org] and \
http://example.org/a. [[fr:Moulin]] [[zh-yue:磨]]""",
        """See its history, cogs, Category:Mills, fr:Moulin, mill, below, the site, and http://example.org/a.""",
    ),
    Article(
        "Lost words",
        """It has {{nobreak|two}} wheels, {{strange template|of oak|and iron}} and {{#if:x|a|b}} {{PAGENAME}}. \
{{Strange_Template}}{{unknown}}""",
        "It has two wheels, and Lost words.",
        ("strange template", "#if", "strange template", "unknown"),
    ),
    Article(
        "Code",
        """Use <code>a &lt; b</code> or <nowiki>'''not bold''' [[no link]]</nowiki>:
<syntaxhighlight lang="python">
if a < b:
    print("{{no template}}")
</syntaxhighlight>
Done.""",
        """Use a < b or '''not bold''' [[no link]]:

if a < b:
    print("{{no template}}")

Done.""",
    ),
    Article(
        "Comments",
        """<!-- hidden
over lines -->One.
<!-- a line of its own -->
Two.<!-- end --> {{Infobox <!-- in a name --> mill |a=1}}__NOTOC__ Three.<!-- never closed""",
        "One.\nTwo. Three.",
    ),
    Article(
        "Entities",
        "Salt &amp; pepper&nbsp;– 5&thinsp;% of &#x4e2d;&#25991; &lt;b&gt; &notanentity; &Eacute;t&eacute;.",
        "Salt & pepper – 5 % of 中文 <b> &notanentity; Été.",
    ),
    Article(
        "Quotation marks",
        "'''''Both''''' ''it'' '''bold''' don't ''the 'inner' one'' ''unclosed\nNext '''line\n"
        "'''!Kung''' people\n[[File:a.png]] after a picture\nso:\n x = 1\n  y = 2",
        "Both it bold don't the 'inner' one unclosed\nNext line\n!Kung people\nafter a picture\nso:\n x = 1\n  y = 2",
    ),
    Article(
        "東京",
        """'''東京''' ({{nihongo|Tokyo|東京|Tōkyō}}), {{zh|s=东京|t=東京|p=Dōngjīng}}, {{transl|ja|Tōkyō}}, \
{{langx|ru|Токио|Tokio}} and {{lang|ja|都}}, {{korean name|hangul=도쿄}}.""",
        """東京 (Tokyo (東京, Tōkyō)), simplified Chinese: 东京; traditional Chinese: 東京; pinyin: Dōngjīng, Tōkyō, \
Russian: Токио, Tokio and 都.""",
        ("korean name",),
    ),
    Article(
        "Ships",
        "{{HMS|Victory}}, {{USS|Enterprise|CV-6}} and {{ship|MV|Mill Queen}}, {{US$|5}} million, {{GBP|3}}.",
        "HMS Victory, USS Enterprise and MV Mill Queen, US$5 million, £3.",
    ),
    Article(
        "Converted",
        "{{convert|6|ft|2|in|cm|abbr=on}}, {{convert|100|F|C}}, {{cvt|3|x|4|m}}, {{convert|2|-|3|mi|km}}, "
        "{{convert|1,200|lb}}.",
        "6 ft 2 in, 100 °F, 3 × 4 m, 2–3 mi, 1,200 lb.",
    ),
    Article(
        "Broken",
        """Start {{unclosed|a. <ref>never closed.
{| class="x"
| cell
Middle ''it. </span> [[open link
== Heading ==
End.""",
        """Start {{unclosed|a. never closed.

Middle it. open link

## Heading

End.""",
    ),
    Article(
        "HTML",
        """<div class="noprint">not shown</div><span style="display:none">nor this</span><p>A <small>small</small> \
<span style="color:red">red</span><br/>line</p><blockquote>quoted</blockquote><gallery>
File:a.jpg|caption
</gallery><poem>
one
two
</poem>""",
        """A small red
line

quoted

one
two""",
    ),
    Article("Nothing", "{{Infobox mill|a=1}}\n[[File:a.png|thumb|b]]\n[[Category:Empty]]", ""),
    Article(
        "Lists in templates",
        """Kinds: {{hlist|one|two}}; {{unbulleted list|three|four}}
{{plainlist|
* five
* six
}}
{{abbr|HP|horsepower}} and {{tooltip|rpm|turns}}, {{gloss|mill}}, {{sic|wheeel}}, {{ill|Jan Moel|nl}}.""",
        """Kinds: one, two;
- three
- four

- five
- six

HP and rpm, ‘mill’, wheeel [sic], Jan Moel.""",
    ),
    Article(
        "Reigns",
        """King Mel ({{reign|1200|1210}}; {{born|1170}}; {{lang-la|Mel Rex}}, {{IPA|[mɛl]}}, {{floruit|1190}}) of the \
{{small|lower}} valley{{efn|Or {{lang|la|vallis}}.}} had {{ordinal|3}} {{unknown crown}}.""",
        "King Mel (r. 1200–1210; b. 1170; Latin: Mel Rex, [mɛl], fl. 1190) of the lower valley had 3rd.",
        ("unknown crown",),
    ),
    Article(
        "Mühle (Bauwerk)",
        """Eine '''Mühle''' ({{frS|moulin}}) mahlt.[[Datei:Mühle.jpg|mini|Eine Mühle]]
{{Zitat|Es klappert.|Volkslied}}
== Einzelnachweise ==
<references />
[[Kategorie:Mühle]]""",
        """Eine Mühle (moulin) mahlt.

Es klappert.
— Volkslied""",
    ),
]
