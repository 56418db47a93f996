"""Log text to events to findings.

``diagnose.diagnose(sources)`` is the way in, ``verdict.report`` makes the report of it and ``facts.facts_of`` reads an
``NCCL_DEBUG=INFO`` output for what is no fault. How logs show a diagnosis, its check declares (``signs.LogSigns``).
All is pure but ``reading`` and ``run``.
"""
