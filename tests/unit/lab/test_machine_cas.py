"""Which certificates a lab host gets from the machine: those beyond Mozilla's, each once."""

from __future__ import annotations

from pathlib import Path

import machine_cas
import pytest


def pem(body: str) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose bundle holds one of Mozilla's certificates and two of its own, one of them twice."""
    mozilla = tmp_path / "mozilla"
    mozilla.mkdir()
    (mozilla / "a.crt").write_text(pem("QUFB"))
    bundle = tmp_path / "bundle.crt"
    bundle.write_text(pem("QUFB") + "# own\n" + pem("QkJC") + pem("Q0ND") + pem("QkJC"))
    monkeypatch.setattr(machine_cas, "BUNDLES", (str(bundle), None, str(tmp_path / "absent")))
    monkeypatch.setattr(machine_cas, "MOZILLA", mozilla)
    return tmp_path


def run(target: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setattr("sys.argv", ["machine_cas.py", str(target)])
    machine_cas.main()
    return {path.read_text() for path in target.iterdir()}


def test_only_the_machines_own(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(machine / "out", monkeypatch) == {pem("QkJC"), pem("Q0ND")}


def test_one_that_is_no_longer_trusted_goes(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(machine / "out", monkeypatch)
    (machine / "bundle.crt").write_text(pem("Q0ND"))
    assert run(machine / "out", monkeypatch) == {pem("Q0ND")}
