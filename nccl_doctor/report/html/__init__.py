"""Renders each report as a single HTML file that can be forwarded.

Templates turn the documents, and plain values computed for the figures, into HTML.
:mod:`nccl_doctor.report.html.document` cleans all values, and then Jinja escapes them. No module in this package writes
HTML tags.
"""
