"""Models of the facts that the checks judge.

Every fact is a value, or an :class:`Unknown` with a reason. ``bool(Unknown)`` raises an exception, so that an unknown
fact can't be taken for "no" in an ``if``. The JSON of an unknown fact is ``{"$unknown": "reason"}``.
"""
