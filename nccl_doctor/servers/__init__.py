"""Servers and libraries that tell their peers an address: vLLM, SGLang, Ray and others. Pure functions."""

SERVERS = ("vllm", "sglang", "ray", "deepspeed", "accelerate")
"""Allowed values of ``--engine``."""
