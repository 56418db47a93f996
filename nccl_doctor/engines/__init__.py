"""The addresses that vLLM, SGLang, Ray and the like tell their peers on a host. Pure."""

ENGINES = ("vllm", "sglang", "ray", "deepspeed", "accelerate")
"""Programs that hosts may be for (``--engine``)."""
