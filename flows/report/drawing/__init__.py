"""Pages for a browser: one file each, with charts, tables and graphs. Any page is a list of sections.

page.py    sections and their blocks as HTML, which asks for nothing
charts.py  charts in Vega-Lite
graph.py   a graph in layers as SVG
static/    the template, its style and its script
"""
