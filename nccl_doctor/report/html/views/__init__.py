"""What the templates read: plain values, measured and worded, so that a template decides nothing but tags.

Lengths and places in pictures are in CSS pixels.
"""
