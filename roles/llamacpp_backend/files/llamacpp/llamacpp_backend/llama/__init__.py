"""llama.cpp behind checked wrappers, and GGUF headers read without it."""
