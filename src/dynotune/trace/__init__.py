"""Recorded traces: readers into one `Timeline`, and the facts that follow from it.

What does not live here: recording a trace (`agent`), what to advise (`doctor`), how it is printed (`report`).
"""
