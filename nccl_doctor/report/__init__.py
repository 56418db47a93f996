"""Reports as text: pure functions of the models (:mod:`nccl_doctor.model.report`, :mod:`nccl_doctor.model.finding`)."""
