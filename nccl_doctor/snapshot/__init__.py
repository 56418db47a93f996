"""Models of the facts that the checks evaluate.

Every fact is either a value or an :class:`Unknown` with a reason. ``bool(Unknown)`` raises an exception, so an unknown
fact can't be mistaken for "no" in an ``if`` statement. In JSON, an unknown fact is represented by ``{"$unknown":
"reason"}``.
"""
