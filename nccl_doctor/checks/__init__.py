"""Contains one module per diagnosis, in ``checks/<category>/<name>.py``.

The docstring of each module is the ``explain`` page of a diagnosis, and the module's path determines the name and
category of this diagnosis.
"""
