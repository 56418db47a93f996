"""The all-reduce: the same torchrun on every host over the connections that stand, and what its ranks report."""

from nccl_doctor.collect.smoke.plan import SmokeLimits
from nccl_doctor.collect.smoke.start import run, why_not

__all__ = ["SmokeLimits", "run", "why_not"]
