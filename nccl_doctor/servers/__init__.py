"""Determines the addresses that servers and libraries, such as vLLM, SGLang and Ray, advertise to their peers."""

SERVERS = ("vllm", "sglang", "ray", "deepspeed", "accelerate")
"""Allowed values of ``--engine``."""
