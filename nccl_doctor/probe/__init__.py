"""The code that runs on the hosts: the standard library, Python 3.8; imports nothing else of ours.

Every ``deadline`` in it is on the clock of ``time.monotonic``.
"""
