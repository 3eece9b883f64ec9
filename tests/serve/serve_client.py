"""A client that talks to the application without a network."""

from __future__ import annotations

import io
from contextlib import contextmanager

import numpy as np
import pytest
import torch

starlette = pytest.importorskip("starlette", reason="needs starlette, a development dependency")

from starlette.testclient import TestClient  # noqa: E402

from factformer.serve.app import build_app  # noqa: E402
from factformer.serve.limits import Limits  # noqa: E402
from factformer.serve.predictor import Predictor  # noqa: E402


@contextmanager
def client_of(surrogate, limits=None, **options):
    app = build_app(Predictor(surrogate, torch.device("cpu"), limits or Limits()), **options)
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        yield client


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def loaded(response):
    assert response.status_code == 200, response.text
    with np.load(io.BytesIO(response.content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def refused(response, status, *words):
    """The one line of a refusal."""
    assert response.status_code == status, response.text
    line = response.json()["error"]
    assert "\n" not in line
    for word in words:
        assert word in line, line
    return line
