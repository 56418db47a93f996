"""The code that runs on the hosts.

The package needs only Python 3.8 and the standard library, and imports no other subpackage of nccl_doctor.

Every ``deadline`` in this package is a point in time as returned by ``time.monotonic()``.
"""
