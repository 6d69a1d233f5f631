"""Slurs in English that have hardly another use: a short list, so that the default can mask them.

It leaves out oaths, insults, and words that also mean something harmless. `lists` in the policy adds words of your own,
and `toxicity` a classifier.
"""

from __future__ import annotations

_WORDS = """
    nigger niggers nigga niggas niggaz niglet niglets sandnigger sandniggers faggot faggots kike kikes spic spics
    wetback wetbacks gook gooks tranny trannies raghead ragheads towelhead towelheads jigaboo jigaboos pickaninny
    pickaninnies beaner beaners paki pakis wog wogs shemale shemales zipperhead zipperheads heeb heebs hymie hymies dago
    dagos wop wops polack polacks darkie darkies mudslime mudslimes muzzie muzzies poofter poofters dothead
    dotheads gyppo gyppos injun injuns kaffirs
"""
SLURS = (
    *_WORDS.split(),
    *("porch monkey", "porch monkeys", "jungle bunny", "jungle bunnies", "camel jockey", "camel jockeys"),
    *("ching chong", "sand nigger", "sand niggers"),
)
