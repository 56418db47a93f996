"""``python -m nccl_doctor``: the command line, if the script is not on PATH."""

from nccl_doctor.cli.main import main

main()
