"""Renders the models in :mod:`nccl_doctor.model.report` and :mod:`nccl_doctor.model.finding` with pure functions."""
