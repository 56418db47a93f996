"""Descriptions of the ways to reach hosts, a module each; :mod:`nccl_doctor.model.engine` lists them."""
