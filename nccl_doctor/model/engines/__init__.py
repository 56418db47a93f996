"""Descriptions of the engines, with a module for each; :mod:`nccl_doctor.model.engine` lists them."""
