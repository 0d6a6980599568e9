"""What ldd says, turned into sentences that name the file and who wants it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

PLUGIN = Path(__file__).parents[3] / "roles/triton_server/filter_plugins/ldd_missing.py"


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ldd_missing = _module(PLUGIN).ldd_missing

FOUND = "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"
WHOLE = f"/r/bin/tritonserver:\n{FOUND}/r/stub:\n{FOUND}"


def test_nothing_is_missing() -> None:
    warning = "ldd: warning: you do not have execution permission for `/r/lib.so'"
    assert ldd_missing({"rc": 0, "stdout": WHOLE, "stderr": warning}) == []


def test_a_library_is_named_once_with_all_who_want_it() -> None:
    said = "/r/a.so:\n\tlibx.so.1 => not found\n\tlibx.so.1 => not found\n/r/stub:\n\tlibx.so.1 => not found\n"
    assert ldd_missing({"rc": 0, "stdout": said, "stderr": ""}) == ["libx.so.1 is missing, wanted by /r/a.so, /r/stub"]


def test_a_symbol_version_that_the_host_lacks_is_named() -> None:
    said = "/r/stub: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /r/stub)"
    assert ldd_missing({"rc": 0, "stdout": "/r/stub:\n", "stderr": said}) == [
        "/r/stub wants GLIBC_2.38, which the host's library lacks"
    ]


def test_a_file_that_ldd_can_not_read_is_a_fault() -> None:
    said = "ldd: /r/stub: No such file or directory"
    assert ldd_missing({"rc": 1, "stdout": WHOLE, "stderr": said}) == [f"ldd ended with 1: {said}"]
    assert ldd_missing({"rc": 126, "stdout": "", "stderr": ""}) == ["ldd ended with 126: no output"]
