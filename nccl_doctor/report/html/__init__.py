"""Renders each report as a single HTML file that can be forwarded.

The templates create HTML from the documents and from values that are computed for the figures.
:mod:`nccl_doctor.report.html.document` cleans all texts except commands to paste, and Jinja escapes all texts. No
module in this package writes HTML tags.
"""
