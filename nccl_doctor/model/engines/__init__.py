"""Descriptions of the engines, one in each module. :mod:`nccl_doctor.model.engine` lists all engines."""
