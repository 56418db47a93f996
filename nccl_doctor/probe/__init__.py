"""The probe, which is the part of nccl-doctor that runs on the hosts.

The probe needs only Python 3.8 or later and the standard library, and imports no other subpackage of nccl_doctor.

Every ``deadline`` in this package is a point in time as returned by ``time.monotonic()``.
"""
