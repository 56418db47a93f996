"""From log text to events to findings.

``diagnose.diagnose(sources)`` is the entry point, ``verdict.report`` makes the report, and ``facts.facts_of`` reads
facts from the output of ``NCCL_DEBUG=INFO``. Each check declares how logs show its diagnosis (``signs.LogSigns``). All
modules but ``reading`` and ``run`` are pure.
"""
