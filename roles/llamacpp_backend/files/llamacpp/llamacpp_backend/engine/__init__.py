"""The continuous-batching engine: which tokens go into the next step, for whom. Knows neither Triton nor llama.cpp."""
