"""The product's Triton without a host: its tree and its venv, made from the roles' digests and locks into the cache."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from bench import cache
from bench.recipe import ROLES, python_version, release_lock, release_wheels, triton_wheel

BACKEND = ROLES / "llamacpp_backend" / "files" / "llamacpp"
REVISION = "0123456789ab"  # config.pbtxt must name one; nobody looks at it here


def tree() -> Path:
    """The server's directory, unpacked as the role does it; it holds bin, backends and caches."""
    wheel = triton_wheel()
    inputs = {"sha256": wheel.sha256, "python": python_version(), "recipe": 1}
    return cache.made("triton", inputs, _unpack) / "pytriton" / "tritonserver"


def _unpack(directory: Path) -> None:
    wheel, log = triton_wheel(), cache.SHELVES / "triton.log"
    cache.pip(
        cache.DISTRIBUTION_PYTHON,
        "download",
        "--only-binary=:all:",
        f"--dest={directory}",
        requirements=f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}",
        log=log,
    )
    (archive,) = directory.glob("*.whl")
    top, stub = "pytriton/tritonserver", "triton_python_backend_stub"
    stubs = f"{top}/python_backend_stubs/{python_version()}/"
    wanted = (f"{top}/bin/", f"{top}/backends/", f"{top}/caches/", stubs, "nvidia_pytriton.libs/")
    with zipfile.ZipFile(archive) as file:
        file.extractall(directory, [name for name in file.namelist() if name.startswith(wanted)])
    archive.unlink()
    python_backend = directory / top / "backends" / "python"
    shutil.move(directory / stubs / stub, python_backend / stub)
    for program in (directory / top / "bin" / "tritonserver", python_backend / stub):
        program.chmod(0o755)
    if wheel.bundled_libpython:
        library = directory / "nvidia_pytriton.libs" / wheel.bundled_libpython
        library.unlink()
        library.symlink_to(f"/usr/lib/x86_64-linux-gnu/libpython{python_version()}.so.1.0")


def venv() -> Path:
    """The models' venv, as a release has it."""
    wheels = [[requirement, sha256] for requirement, _, sha256 in release_wheels()]
    inputs = {
        "lock": hashlib.sha256(release_lock().encode()).hexdigest(),
        "wheels": wheels,
        "python": python_version(),
        "recipe": 1,
    }
    return cache.made("venv", inputs, _make_venv)


def _make_venv(directory: Path) -> None:
    log = cache.SHELVES / "venv.log"
    python = cache.make_venv(directory, log)
    pins = "".join(f"\n{requirement} --hash=sha256:{sha256}" for requirement, _, sha256 in release_wheels())
    shelves = [f"--find-links={path.parent}" for _, path, _ in release_wheels()]
    cache.pip(
        python, "install", "--only-binary=:all:", "--compile", *shelves, requirements=release_lock() + pins, log=log
    )


def site_packages() -> Path:
    """Where the venv's packages are, llama_cpp among them."""
    return venv() / "lib" / f"python{python_version()}" / "site-packages"


def lay_out(
    root: Path, name: str, gguf: Path, engine: Mapping[str, object], defaults: Mapping[str, object]
) -> tuple[Path, Path]:
    """Write a model repository and a backend directory below `root`, as the roles do on a host; returns both.

    The backend is the work tree's own. `engine` and `defaults` are those of an entry of `triton_models`.
    """
    repository = root / "models"
    for unit, kind in ((f"{name}_stream", "engine"), (name, "front")):
        version = repository / unit / "1"
        version.mkdir(parents=True)
        (repository / unit / "config.pbtxt").write_text(_config(unit, kind, name), encoding="utf-8")
        model: dict[str, Any] = {"engine_model": f"{name}_stream"}
        if kind == "engine":
            (version / "model.gguf").symlink_to(gguf)
            model = {"schema": 1, "name": name, "version": 1, "revision": REVISION}
            model |= {"engine": dict(engine), "defaults": dict(defaults)}
        (version / "model.json").write_text(json.dumps(model, indent=2), encoding="utf-8")
    return repository, backends(root)


def backends(root: Path) -> Path:
    """A backend directory below `root`: Triton's Python backend and, in the work tree's state, ours."""
    directory = root / "backends"
    directory.mkdir()
    (directory / "python").symlink_to(tree() / "backends" / "python")
    (directory / "llamacpp").symlink_to(BACKEND)
    return directory


def _config(unit: str, kind: str, name: str) -> str:
    """The role's own config.pbtxt, but for the path of the venv."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters["comment"] = lambda text: f"# {text}"
    template = (ROLES / "model_repository" / "templates" / "config.pbtxt").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        ansible_managed="made by bench",
        item={"unit": unit, "kind": kind, "entry": {"name": name, "version": 1}},
        __model_repository_revisions={name: REVISION},
    )
    return text.replace("/run/triton/release/venv", str(venv()))
