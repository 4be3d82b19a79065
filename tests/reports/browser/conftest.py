"""`--screenshots DIR`: where the pictures of the documentation go; without it none are kept."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", default=None, help="folder for pictures of the report")
