"""Models of the facts that the checks evaluate.

A fact that could not be determined is an :class:`Unknown` with a reason. ``bool(Unknown)`` raises an exception, so an
unknown fact can't be mistaken for "no" in an ``if`` statement. In JSON, an unknown fact is represented by
``{"$unknown": "reason"}``.
"""
