"""llama.cpp's own server, built from the sources and with the flags that the product's wheel is built from.

    python -m bench.peers.llama_server     builds it when it is not there; prints the path of the program

It takes some minutes, two compilers at the lowest priority and no network but for the sources. The program stays in the
cache, in a directory named by what it was built from.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any

from bench import cache
from bench.recipe import LOCKS, llama_cpp

KIND = "llama-server"
JOBS = 2
RECIPE = 1  # raise it when the steps below make another program out of the same inputs
# No https, no web page to be fetched, none of the other programs: the rest is as in the product's wheel.
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def inputs() -> dict[str, Any]:
    """Everything that shapes the program."""
    sources = llama_cpp()
    return {
        "version": sources.version,
        "sdist_sha256": sources.sdist_sha256,
        "cmake": [*sources.cmake, *FLAGS],
        "glibc": platform.libc_ver()[1],
        "recipe": RECIPE,
    }


def path() -> Path:
    """Where the built program is, or would be."""
    return cache.shelf(KIND, inputs()) / "bin" / "llama-server"


def built() -> Path:
    """Build the program when it is not there. Raises SystemExit when that fails."""
    return cache.made(KIND, inputs(), _build) / "bin" / "llama-server"


def command(gguf: Path, port: int, slots: int, n_ctx: int, threads: int, cache_mib: int) -> list[str]:
    """The command that serves a file on loopback; `n_ctx` tokens for each slot, as the product gives them out."""
    options = {
        "--model": gguf,
        "--host": "127.0.0.1",
        "--port": port,
        "--threads": threads,
        "--threads-batch": threads,
        "--parallel": slots,
        "--ctx-size": n_ctx * slots,
        "--cache-ram": cache_mib,
    }
    values = [str(word) for option in options.items() for word in option]
    return [str(path()), *values, "--no-kv-unified", "--jinja", "--no-ui", "--offline"]


def _build(directory: Path) -> None:
    if shutil.which("g++") is None:
        raise SystemExit("bench: llama-server is compiled with g++: install the package g++")
    work = directory / "work"
    log = cache.SHELVES / "llama-server.log"
    log.unlink(missing_ok=True)
    # The same CMake and ninja as for the wheel; pip asks the sources for their name by the same build backend.
    python = cache.make_venv(work / "venv", log)
    lock = (LOCKS / "build-llama-cpp-python.txt").read_text(encoding="utf-8")
    cache.pip(python, "install", "--only-binary=:all:", requirements=lock, log=log)
    sources = llama_cpp()
    cache.pip(
        python,
        "download",
        "--no-binary=:all:",
        "--no-build-isolation",
        f"--dest={work}",
        requirements=f"llama-cpp-python=={sources.version} --hash=sha256:{sources.sdist_sha256}",
        log=log,
    )
    (archive,) = work.glob("*.tar.gz")
    cache.run_quietly(["tar", "-xzf", archive, "-C", work], log)
    (tree,) = work.glob("*/vendor/llama.cpp")
    tools = f"{work}/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    build = work / "build"
    configure: list[str | Path] = ["cmake", "-G", "Ninja", "-S", tree, "-B", build, *sources.cmake, *FLAGS]
    cache.run_quietly(configure, log, PATH=tools)
    compile_server: list[str | Path] = ["cmake", "--build", build, "--parallel", str(JOBS), "--target", "llama-server"]
    cache.run_quietly(compile_server, log, PATH=tools)
    # Only the program and the libraries beside it, which it looks for relative to itself.
    install = directory / "bin"
    install.mkdir()
    for file in (build / "bin").iterdir():
        if file.name == "llama-server" or ".so" in file.name:
            shutil.copy2(file, install / file.name, follow_symlinks=False)
    shutil.rmtree(work)


if __name__ == "__main__":
    print(built())
