"""NCCL failed, and the log does not say why.

What it means: A warning that speaks for no known cause, or only the class of an error ("unhandled system error",
"internal error").

How we know: The last line of NCCL's that is no known harmless one. Without NCCL_DEBUG, torch shows only what stands
behind "Last error:".

Fix: Run again with NCCL_DEBUG=INFO and give all ranks' output to `nccl-doctor logs`; `nccl-doctor check` tests what
it needs.

References: NCCL's src/debug.cc; NCCL user guide, troubleshooting.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD918")
