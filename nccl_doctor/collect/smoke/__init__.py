"""The all-reduce: the same torchrun on every host over the connections that stand, and what its ranks report."""

from nccl_doctor.collect.smoke.launch import run, why_not
from nccl_doctor.collect.smoke.plan import Limits

__all__ = ["Limits", "run", "why_not"]
