"""Runs Triton kernels on a CPU: import this before any module that holds kernels."""

import os

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("here is a GPU, so the interpreter is not needed: see test_kernels_gpu", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 must be set before triton is imported", allow_module_level=True)
interpreter = pytest.importorskip("triton.runtime.interpreter")

# Triton 3.6 converts arrays of one element with int() and bool(), which numpy 2.4 refuses.
_patch_tensor = interpreter._patch_lang_tensor


def _patch(tensor, scope):
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
    scope.set_attr(tensor, "__bool__", lambda self: self.handle.data.size != 1 or bool(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch
