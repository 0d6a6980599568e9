"""The store of wheels: which one a host takes, which are passed over, and who builds what lacks."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

ROLES = Path(__file__).parents[3] / "roles"
WANTED: dict[str, Any] = {
    "name": "llama-cpp-python",
    "version": "0.3.36",
    "python": "py3",
    "cpu_target": "x86-64-v3",
    "options": ["-DGGML_AVX2=ON"],
}
NUMPY: dict[str, Any] = {"name": "numpy", "version": "1.26.4", "python": "cp313", "options": []}


def _module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROLES / path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


wheel_store = _module("llama_cpp_python/filter_plugins/wheel_store.py")


def _store(root: Path, wanted: dict[str, Any], glibc: str, content: bytes = b"a wheel") -> Path:
    digest = hashlib.sha256(content).hexdigest()
    key = root / str(wheel_store.wheel_key(wanted, glibc))
    file = key / digest / f"{wanted['name'].replace('-', '_')}-{wanted['version']}-any.whl"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    manifest = {"wanted": wanted, "glibc": glibc, "file": f"{digest}/{file.name}", "sha256": digest}
    (key / "manifest.json").write_text(json.dumps(manifest))
    return file


def test_an_empty_store_has_nothing(tmp_path: Path) -> None:
    found = wheel_store.stored_wheel(WANTED, str(tmp_path / "absent"), "2.36")
    assert found == {"wanted": WANTED, "ready": False, "faults": []}


def test_a_wheel_fits_the_same_and_newer_c_libraries_only(tmp_path: Path) -> None:
    file = _store(tmp_path, WANTED, "2.36")
    for glibc in ("2.36", "2.41", "2.100"):
        found = wheel_store.stored_wheel(WANTED, str(tmp_path), glibc)
        assert (found["ready"], found["path"]) == (True, str(file))
    older = wheel_store.stored_wheel(WANTED, str(tmp_path), "2.9")
    assert older["ready"] is False
    assert "needs glibc 2.36, this host has 2.9" in older["faults"][0]


def test_the_newest_fitting_c_library_wins(tmp_path: Path) -> None:
    _store(tmp_path, WANTED, "2.9", b"old")
    newer = _store(tmp_path, WANTED, "2.36", b"new")
    assert wheel_store.stored_wheel(WANTED, str(tmp_path), "2.41")["path"] == str(newer)


@pytest.mark.parametrize(
    "change",
    [
        {"version": "0.3.35"},
        {"cpu_target": "x86-64-v2"},
        {"options": ["-DGGML_AVX2=OFF"]},
        {"python": "cp313"},
    ],
)
def test_every_input_of_the_build_tells_wheels_apart(tmp_path: Path, change: dict[str, Any]) -> None:
    _store(tmp_path, WANTED, "2.36")
    other = {**WANTED, **change}
    assert wheel_store.stored_wheel(other, str(tmp_path), "2.36")["ready"] is False
    assert wheel_store.wheel_key(other, "2.36") != wheel_store.wheel_key(WANTED, "2.36")


def test_a_damaged_wheel_is_passed_over_and_named(tmp_path: Path) -> None:
    file = _store(tmp_path, WANTED, "2.36")
    file.write_bytes(b"a wheal")
    found = wheel_store.stored_wheel(WANTED, str(tmp_path), "2.36")
    assert found["ready"] is False
    assert f"{file} is damaged" in found["faults"][0]
    file.unlink()
    assert "is not there" in wheel_store.stored_wheel(WANTED, str(tmp_path), "2.36")["faults"][0]


def test_a_broken_manifest_is_passed_over_and_named(tmp_path: Path) -> None:
    broken = tmp_path / "x" / "manifest.json"
    broken.parent.mkdir()
    broken.write_text("{")
    file = _store(tmp_path, WANTED, "2.36")
    found = wheel_store.stored_wheel(WANTED, str(tmp_path), "2.36")
    assert found["path"] == str(file)
    assert str(broken) in found["faults"][0]


def test_a_wrong_version_of_the_c_library_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match=r"'musl' is no version"):
        wheel_store.stored_wheel(WANTED, ".", "musl")


def _host(name: str, glibc: str, *missing: dict[str, Any], build_host: str = "") -> dict[str, Any]:
    return {"host": name, "glibc": glibc, "missing": list(missing), "build_host": build_host}


def test_the_oldest_c_library_that_lacks_the_wheel_builds_it_once() -> None:
    hosts = [_host("a13", "2.41", WANTED, NUMPY), _host("b12", "2.36", WANTED), _host("c11", "2.9")]
    assert wheel_store.wheel_jobs(hosts) == [
        {"wanted": WANTED, "builder": "b12", "leader": "b12"},
        {"wanted": NUMPY, "builder": "a13", "leader": "a13"},
    ]


def test_a_declared_build_host_builds_what_serves_every_python() -> None:
    jobs = wheel_store.wheel_jobs([_host("a13", "2.41", WANTED, NUMPY, build_host="smithy")])
    assert [(job["builder"], job["leader"]) for job in jobs] == [("smithy", "a13"), ("a13", "a13")]


def test_nothing_missing_is_nothing_to_build() -> None:
    assert wheel_store.wheel_jobs([_host("a", "2.36")]) == []
