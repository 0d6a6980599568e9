# Read by CMake right after llama.cpp's project() call. A normal variable wins over the option's default and over the cache.
set(LLAMA_BUILD_COMMON OFF)
