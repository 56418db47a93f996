"""A file for each diagnosis: ``checks/<category>/<name>.py``, found by walking this package.

The module's docstring is its ``explain`` page, its file name the diagnosis' name, its folder the category.
"""
