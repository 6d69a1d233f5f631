"""Guards of requests and answers: what may reach the model, and what may leave it, within a stream too.

A guard finds forms and listed words. It can't see

- names of people and places, postal addresses, and anything else personal without a form
- the meaning: a paraphrase, a threat or a lie without a listed word, a value described in words (three zero one …)
- values that are hidden: in base64 or another code, backwards, with letters between their signs, or in parts that the
  reader puts together
- slurs that are not on the list, in other languages, or with blanks between their letters
- injections in other words than the listed ones, or in other languages
- whether a value is real, public, or the user's own: an invented address is masked too
- images, audio, and files that a request names
- the name of an e-mail address in a script without spaces, of which an answer's mask covers the domain only
- a key of more than 512 characters whose form shows only at its end
- numbers that a masked answer needs as such: a label in JSON outside quotes breaks it

config.py      the policy, as YAML
policy.py      a policy, compiled and loaded
request.py     the checks of a request
hidden.py      control characters and invisible ones
stream.py      an answer that grows: holds text back, masks it, ends it
rule.py        marks and steps, which all rules share
personal.py    personal data and secrets, by the filter's patterns
words.py       listed words and phrases, and regular expressions
slurs.py       the list of slurs
sentences.py   the toxicity classifier, and the user's own guards
"""

from tasks.serve.guards.config import GuardsConfig
from tasks.serve.guards.policy import Guards
from tasks.serve.guards.request import InputVerdict
from tasks.serve.guards.stream import Finding, OutputGuard

__all__ = ["Finding", "Guards", "GuardsConfig", "InputVerdict", "OutputGuard"]
