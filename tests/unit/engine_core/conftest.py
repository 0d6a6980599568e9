"""Lets the tests here import their own helpers by the same names that the type checker knows."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
