"""A report as text: pure functions of the nouns (:mod:`nccl_doctor.model`, :mod:`nccl_doctor.finding`)."""
