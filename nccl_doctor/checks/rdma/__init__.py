"""Diagnoses of RDMA."""
