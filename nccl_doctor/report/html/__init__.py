"""Reports as one HTML file that can be forwarded.

Templates make HTML of the documents, and of plain values that Python makes for the pictures. Jinja escapes whatever
goes into a page, and :mod:`nccl_doctor.report.html.document` cleans it before; no module here writes a tag.
"""
