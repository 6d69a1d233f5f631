"""Instructions, preferences and labelled answers in whatever form the field gives them, as the form that is trained on.

convert.py      a row to a conversation, to a prompt with a chosen and a rejected answer, or to one with a label
choose.py       which form a row has, by its keys
form.py         what a form is, and the names of all
turns.py        lists of turns: roles, content, tool calls
texts.py        what a text must be
order.py        the order that turns must have
chat.py         forms that are lists of turns: messages, sharegpt
question.py     a question and its answer: alpaca, dolly, prompt_completion
oasst.py        the trees of OpenAssistant
preferences.py  a chosen and a rejected answer
labelled.py     one answer, desirable or not
transcript.py   conversations written as one text, as in HH-RLHF
"""

from tasks.download.pairs.convert import Converted, instruction, labelled, preference

__all__ = ["Converted", "instruction", "labelled", "preference"]
