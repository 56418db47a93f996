"""Which address vLLM, SGLang, Ray and the like tell their peers on a host, and whether those find it there. Pure."""
