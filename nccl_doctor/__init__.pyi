from nccl_doctor.api import PreflightError, check, preflight, read_log
from nccl_doctor.errors import DoctorError
from nccl_doctor.model.report import Report

__version__: str
__all__ = ["DoctorError", "PreflightError", "Report", "check", "preflight", "read_log"]
