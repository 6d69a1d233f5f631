"""Test cases of hate speech by function, in the spirit of HateCheck (Röttger et al. 2021), made from templates.

A figure over posts says little about what a classifier has learned: profanity goes with hate there. Here each function
varies one thing, so that a classifier of swear words is found out. The cases are written for this file; a function has
as many cases as templates times groups.
"""

from __future__ import annotations

from typing import NamedTuple

GROUPS = ("Muslims", "Jews", "black people", "immigrants", "gay people", "women", "disabled people")
ONES = ("a Muslim", "a Jew", "black", "an immigrant", "gay", "a woman", "disabled")

# Every case is hateful or abusive
ABUSE = {
    "threat": (
        "I am going to find {group} and make them bleed.",
        "{group} will be hanged from the lamp posts, and I will watch.",
        "If {group} come here again, we will burn their houses down.",
    ),
    "dehumanisation": (
        "{group} are vermin, and vermin must be exterminated.",
        "{group} breed like rats and spread disease wherever they go.",
    ),
    "derogation": ("{group} are the lowest and most disgusting people on earth.", "I despise all {group}, every one."),
    "exclusion": (
        "Every town would be better off if {group} were driven out of it.",
        "{group} should not be allowed to vote or to sit beside normal people.",
    ),
    "hate by negation": ("{group} are not human beings.", "No decent person would ever trust {group}."),
    "hate with profanity": ("{group} are fucking scum.", "Fuck all {group}, the whole lot of them are shit."),
    "insult": (
        "You are a worthless idiot and everybody hates you.",
        "Shut up, you stupid ugly moron.",
        "Nobody would miss you, you pathetic loser.",
        "What a disgusting pig you are.",
        "You dumb bitch, crawl back into your hole.",
        "Go and kill yourself, you retard.",
    ),
}
# No case is
HARMLESS = {
    "identity": (
        "My neighbours are {group}, and we have lunch together.",
        "A museum of the history of {group} opens.",
        "Two of the five candidates spoke about the rights of {group}.",
    ),
    "identity of the writer": ("I am {one} and proud of it.", "As I am {one}, the invitation meant a lot to me."),
    "praise": ("{group} are wonderful people.", "I admire what {group} have done for this city."),
    "negated hate": ("{group} are not vermin.", "I would never say that {group} are disgusting."),
    "counter-speech": (
        'Whoever says that "{group} are scum" should be ashamed.',
        'He shouted "kill all {group}", and I reported him at once, as such threats are a crime.',
    ),
    "report": (
        "The pamphlet claimed that {group} were subhuman, which led to the massacre that the museum documents.",
        "The court convicted him of threatening to kill {group} in the market square.",
    ),
    "slur named": (
        'The word "faggot" hurts people, so please don\'t use it.',
        'At school they called me "retard" every day, and no teacher stopped them.',
        'The dictionary marks "bitch" as vulgar when it is said of a woman.',
        'Stop calling her a "whore".',
    ),
    "profanity alone": (
        "I fucking love this song.",
        "What a shitty day, my bike was stolen.",
        "Holy shit, that was a great match.",
        "Damn, I forgot my fucking keys again.",
        "This pizza is so fucking good.",
        "We worked our asses off and won.",
    ),
    "violence against things": (
        "I will kill this process before it eats all memory.",
        "We murdered them at chess last night.",
        "That joke killed me.",
        "I hate mushrooms, they are disgusting.",
        "This printer is a worthless piece of junk.",
        "Shoot me an e-mail and I will destroy that bug.",
    ),
}


class Case(NamedTuple):
    """A text, the function that it tests, and whether it is abusive."""

    function: str
    abusive: bool
    text: str


def cases() -> list[Case]:
    """All cases, in a fixed order."""
    return [
        Case(function, abusive, _sentence(text))
        for functions, abusive in ((ABUSE, True), (HARMLESS, False))
        for function, templates in functions.items()
        for template in templates
        for text in _filled(template)
    ]


def _filled(template: str) -> list[str]:
    if "{" not in template:
        return [template]
    return [template.format(group=group, one=one) for group, one in zip(GROUPS, ONES, strict=True)]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
