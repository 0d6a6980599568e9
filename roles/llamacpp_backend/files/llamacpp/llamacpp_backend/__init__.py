"""The `llamacpp` Triton backend: GGUF models on the CPU through llama.cpp.

Only `triton_adapter` imports Triton's utilities and only `runtime` imports llama_cpp.
"""
