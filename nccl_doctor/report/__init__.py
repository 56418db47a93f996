"""A report as text: pure functions of the nouns (:mod:`nccl_doctor.model.report`, :mod:`nccl_doctor.model.finding`)."""
