"""llama.cpp behind checked wrappers: the only importers of llama_cpp."""
