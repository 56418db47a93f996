"""Makes ``python -m nccl_doctor`` start nccl-doctor, even if the ``nccl-doctor`` script is not on PATH."""

from nccl_doctor.cli.main import main

main()
