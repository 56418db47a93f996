"""The code that runs on the hosts, for Python 3.8 with the standard library.

It imports nothing else from this package.

Every ``deadline`` in it is a time on the clock of ``time.monotonic``.
"""
