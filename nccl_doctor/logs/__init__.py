"""Diagnoses logs: text becomes events, and events become findings.

``diagnose.diagnose(sources)`` is the entry point, ``verdict.report`` makes the report, and ``facts.facts_of`` reads
facts from the output of ``NCCL_DEBUG=INFO``. Each check declares how logs show its diagnosis (``signs.LogSigns``). Only
the modules ``reading`` and ``run`` do I/O.
"""
