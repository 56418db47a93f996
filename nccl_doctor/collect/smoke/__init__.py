"""The all-reduce: ranks on every host over the connections that stand, and what they report."""

from nccl_doctor.collect.smoke.plan import SmokeLimits
from nccl_doctor.collect.smoke.start import begin_import, run, why_not

__all__ = ["SmokeLimits", "begin_import", "run", "why_not"]
