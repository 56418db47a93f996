"""``python -m nccl_doctor``: the command line when the script is not on PATH."""

from nccl_doctor.cli.main import main

main()
