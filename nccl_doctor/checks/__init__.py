"""Contains a file for each diagnosis, ``checks/<category>/<name>.py``, found by walking this package.

The file's docstring is the diagnosis's ``explain`` page; the file and its folder give its name and category.
"""
