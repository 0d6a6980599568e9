"""A skip without a reason must turn lint red; one with a reason must not."""

from __future__ import annotations

import pytest
from skip_reasons import python_faults, yaml_faults


@pytest.mark.parametrize(
    "text",
    [
        "pytest.skip()",
        "pytest.skip('')",
        "pytest.importorskip('torch')",
        "@pytest.mark.skip\ndef test(): ...",
        "@pytest.mark.skip()\ndef test(): ...",
        "@pytest.mark.skipif(True)\ndef test(): ...",
        "@pytest.mark.xfail(strict=True)\ndef test(): ...",
        "pytestmark = [pytest.mark.skip]",
        "@unittest.skipIf(True, '')\ndef test(): ...",
    ],
)
def test_python_without_reason(text: str) -> None:
    assert len(list(python_faults(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "pytest.skip('no such machine here')",
        "pytest.skip(reason=why)",
        "pytest.importorskip('torch', reason='only where models are trained')",
        "@pytest.mark.skipif(True, reason='needs root')\ndef test(): ...",
        "@unittest.skipIf(True, 'needs root')\ndef test(): ...",
        "text.skip()",
    ],
)
def test_python_with_reason(text: str) -> None:
    assert list(python_faults(text)) == []


def test_the_line_is_named() -> None:
    assert list(python_faults("import pytest\n\npytest.skip()\n")) == [(3, "pytest.skip without a reason")]


@pytest.mark.parametrize(
    "text",
    ["- shell: x  # noqa", "- shell: x  # noqa: command-instead-of-shell", "x: 1  # noqa: var-naming[no-role-prefix]"],
)
def test_yaml_without_reason(text: str) -> None:
    assert len(list(yaml_faults(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "- shell: x  # noqa: risky-shell-pipe sh has no pipefail",
        "# a pipe is needed  # noqa: risky-shell-pipe",
        "x: noqa",
    ],
)
def test_yaml_with_reason(text: str) -> None:
    assert list(yaml_faults(text)) == []
