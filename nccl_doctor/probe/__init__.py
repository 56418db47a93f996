"""The code that runs on the hosts; it needs Python 3.8 and only the standard library.

It imports no other part of this package.

Every ``deadline`` in this code is a time on the clock of ``time.monotonic``.
"""
