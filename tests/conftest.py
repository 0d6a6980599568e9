"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no fault of the code: no test has a time limit of its own.
settings.register_profile("product", deadline=None)
settings.load_profile("product")
