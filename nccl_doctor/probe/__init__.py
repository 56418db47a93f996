"""The code that runs on the hosts, for Python 3.8 with the standard library; imports nothing else from this package.

Every ``deadline`` in it is a time of ``time.monotonic``.
"""
