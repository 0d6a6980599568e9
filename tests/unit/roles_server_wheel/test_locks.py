"""The hash-locked files, and the filters that read them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from ansible.errors import AnsibleFilterError

ROLE = Path(__file__).parents[3] / "roles/llama_cpp_python"
A = "a==1 \\\n    --hash=sha256:00\n    # via b\n"
NUMPY = "numpy==1.26.4 \\\n    --hash=sha256:01 \\\n    --hash=sha256:02\n"
Z = "z==2 \\\n    --hash=sha256:03\n"
LOCK = A + NUMPY + Z


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


locks = _module(ROLE / "filter_plugins/locks.py")


def test_an_entry_goes_with_all_its_hashes_and_nothing_else() -> None:
    assert locks.lock_without(LOCK, ["numpy"]) == A + Z
    assert locks.lock_without(LOCK, []) == LOCK


def test_what_the_lock_does_not_have_is_named() -> None:
    with pytest.raises(AnsibleFilterError, match="no entry for scipy"):
        locks.lock_without(LOCK, ["scipy"])
    with pytest.raises(AnsibleFilterError, match="0 versions of scipy"):
        locks.lock_version(LOCK, "scipy")
    with pytest.raises(AnsibleFilterError, match=r"no lock 'x\.txt'; known: .*release\.txt"):
        locks.lock_text("x.txt")


def test_numpy_is_older_than_2_and_llama_cpp_python_comes_from_its_own_wheel() -> None:
    text = locks.lock_text("release.txt")
    assert locks.lock_version(text, "numpy") == "1.26.4"
    assert "\nllama-cpp-python==" not in text


@pytest.mark.parametrize("name", ["release.txt", "build-llama-cpp-python.txt", "build-numpy.txt"])
def test_every_entry_is_pinned_and_has_hashes(name: str) -> None:
    text = locks.lock_text(name)
    entries = re.findall(r"^[a-z].*\n(?:[ \t].*\n)*", text, re.MULTILINE)
    assert entries
    for entry in entries:
        assert re.match(r"^[a-z0-9.-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry
