"""Text of what dumps hold. Here rather than in `download`, as its processes load no more than they need.

wikitext.py   an article of MediaWiki
templates.py  the templates that carry words, by name
posts.py      a question of StackExchange with its answers
latex.py      a paper in LaTeX
"""
