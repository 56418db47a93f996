"""The code that runs on the hosts: standard library, psutil, Python 3.8; imports nothing else of ours."""
