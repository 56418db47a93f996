"""Renders each report as a single HTML file that can be forwarded.

The templates create HTML from the documents and from values that are computed for the figures.
:mod:`nccl_doctor.report.html.document` removes control characters from all text except commands to be pasted, and Jinja
escapes all text. No module in this package writes HTML tags.
"""
