"""OpenLineage: events of runs and artifacts, so that a company's catalogue sees them. Off unless a profile asks for it.

observer.py  follows a run and says what begins and ends
events.py    the events, by the classes of openlineage-python
datasets.py  artifacts, and sources outside the store, as datasets
sending.py   to a URL or a file, without ever ending or delaying a run for long
"""
