"""The forms of requests and answers.

chat.py         OpenAI's chat completions
completions.py  OpenAI's completions
messages.py     Anthropic's messages
fields.py       reads bodies
stream.py       writes answers, whole or as events
errors.py       refusals
openapi.py      the document of all routes
"""
