"""Data models of clusters, findings, reports, and other documents."""
