"""Finds the addresses that vLLM, SGLang, Ray and other engines advertise on a host. Pure functions."""

ENGINES = ("vllm", "sglang", "ray", "deepspeed", "accelerate")
"""Allowed values of ``--engine``."""
