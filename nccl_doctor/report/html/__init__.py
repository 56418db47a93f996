"""Reports as one HTML file: what is forwarded to the person with root.

Python makes plain values of a report (views/ says which), templates make HTML of those. Jinja escapes whatever goes
into a page, and :mod:`nccl_doctor.report.html.document` cleans it before; no module here writes a tag.
"""
