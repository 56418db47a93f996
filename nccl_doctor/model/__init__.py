"""Clusters, findings, reports and the other documents: what is asked for and answered."""
