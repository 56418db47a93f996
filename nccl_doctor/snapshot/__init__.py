"""Typed facts: the document that checks judge.

Every fact is a value or :class:`Unknown`, which says why nobody could look. ``bool(Unknown)`` raises, so that
"could not look" can't slip through an ``if`` as "no". JSON of an unknown fact: ``{"$unknown": "reason"}``.
"""
