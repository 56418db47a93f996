"""Renders reports as one HTML file that can be forwarded.

Templates turn the documents, and plain values computed for the figures, into HTML.
:mod:`nccl_doctor.report.html.document` cleans all values, and then Jinja escapes them. No module here writes tags.
"""
