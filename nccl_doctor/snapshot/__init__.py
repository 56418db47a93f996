"""Typed facts for the checks to judge.

Every fact is a value or :class:`Unknown` with a reason. ``bool(Unknown)`` raises, so that an unknown fact can't be
taken for "no" in an ``if``. The JSON of an unknown fact is ``{"$unknown": "reason"}``.
"""
