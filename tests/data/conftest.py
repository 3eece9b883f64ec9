from __future__ import annotations

import pytest
from fake_pdes import Decay, Doubling


@pytest.fixture
def decay() -> Decay:
    return Decay()


@pytest.fixture
def doubling() -> Doubling:
    return Doubling()
