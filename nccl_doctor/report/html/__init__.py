"""Reports as one HTML file that can be forwarded.

Templates turn the documents, and plain values computed for the figures, into HTML. Jinja escapes all values, and
:mod:`nccl_doctor.report.html.document` cleans them before; no module here writes tags.
"""
