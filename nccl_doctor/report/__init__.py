"""A report as text: pure functions of :mod:`nccl_doctor.model`."""
