"""Contains one module per diagnosis, in ``checks/<category>/<name>.py``.

The module's docstring is the ``explain`` page of the diagnosis, and the path of the module determines the name and
category of the diagnosis.
"""
