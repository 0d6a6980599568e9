"""The `llamacpp` Triton backend: GGUF models on the CPU through llama.cpp.

Only `triton_adapter` imports Triton's utilities. llama_cpp is imported by `llama` and, in a process of its own, by
`constrain.trial`.
"""
