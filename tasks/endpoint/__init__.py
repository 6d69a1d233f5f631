"""An OpenAI-compatible endpoint, asked for answers: what post-training and evaluation share.

config.py  which one: its address, the model there, the variable that holds the key
client.py  chats: questions and their answers
sender.py  requests, repeated where a fault passes
paid.py    its answers, kept for a run that goes on
prompts.py the likeliest tokens in the place of those of a text
reply.py   an answer, and why it is of no use
"""
