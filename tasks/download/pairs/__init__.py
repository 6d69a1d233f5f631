"""Instructions, preferences and labelled answers of any common form, converted to the one that is trained on.

convert.py      converts a row to a conversation, or to a prompt with two answers or one labelled one; checks order
choose.py       finds the form of a row by its keys
form.py         a form, and the names of all
turns.py        lists of turns: roles, content, tool calls; the forms messages and sharegpt
texts.py        the checks of a text
question.py     a question and its answer: alpaca, dolly, prompt_completion
oasst.py        the trees of OpenAssistant
preferences.py  a chosen and a rejected answer
labelled.py     one answer, desirable or not
transcript.py   conversations written as one text, as in HH-RLHF
"""

from tasks.download.pairs.convert import Converted, instruction, labelled, preference

__all__ = ["Converted", "instruction", "labelled", "preference"]
