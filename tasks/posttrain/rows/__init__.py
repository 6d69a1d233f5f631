"""Rows of post-training, one file per row form.

row_sources.py  the files that rows are read from
form.py         what a row form is, and what the forms share
prepare.py      read rows, render them, drop unusable ones with a reason, hold some out
same_rows.py    rows that are the same
duplicates.py   drop duplicates before anything is rendered
instruction.py  conversations, with the loss on the assistant's tokens
preference.py   prompts with a preferred and a rejected answer, also as whole conversations for a judge
labelled.py     prompts with one answer that is desirable or not
prompt.py       prompts with a reference, for sampled answers
"""
