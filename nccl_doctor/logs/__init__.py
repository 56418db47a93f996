"""Diagnoses logs by converting text to events, and events to findings.

``diagnose.diagnose(sources)`` is the entry point, ``verdict.report`` creates the report, and ``facts.facts_of``
extracts facts from the lines that NCCL prints with ``NCCL_DEBUG=INFO``. Each check declares the log patterns of its
diagnosis in a ``signs.LogSigns``. Only the ``reading`` and ``run`` modules perform I/O.
"""
