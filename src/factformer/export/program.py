"""One call of a surrogate as a graph: traced by ``torch.export``, and written in each format.

Tensors in, tensors out, in physical units: the normaliser and the tables of the grid are constants of the graph. The
grid is fixed, the number of samples is not.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from factformer._support.silence import silenced
from factformer._support.text import first_line
from factformer.batch import Batch
from factformer.errors import UserError
from factformer.surrogate import Surrogate

OPSET = 20
"""The version of the ONNX operators: the first with GELU."""
LARGEST_ONNX = 1.5e9
"""Bytes of weights above which a model would need a second file."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INFORMATION = "factformer.json"
"""Where a program tells what it is: a file in the archive of ``torch.export``, a property of an ONNX model."""


class Call(nn.Module):
    """One call of a surrogate, with the parts of a batch by name."""

    def __init__(self, surrogate: Surrogate, num_steps: int) -> None:
        super().__init__()
        self.surrogate, self.num_steps = surrogate, num_steps

    def forward(
        self,
        context: Tensor | None = None,
        static: Tensor | None = None,
        forcing: Tensor | None = None,
        parameters: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        batch = Batch(context, static, forcing, parameters, mask)
        return self.surrogate.predict(batch, self.num_steps, self.surrogate.problem.grid)


def plain_call(surrogate: Surrogate, num_steps: int) -> Call:
    """A call of a copy in float32 that nothing is attached to: a trace must not leave its mark on the surrogate."""
    with torch.random.fork_rng(devices=[]):
        copy = Surrogate(surrogate.problem, surrogate.config, surrogate.marching_steps)
    copy.load_state_dict(surrogate.state_dict())
    return Call(copy.float().to(next(surrogate.parameters()).device).eval(), num_steps)


def trace(call: Call, batch: Batch) -> torch.export.ExportedProgram:
    """The graph of ``call`` for any number of samples like those of ``batch``."""
    parts = dict(zip(batch.names, batch.tensors, strict=True))
    size = torch.export.Dim("batch")
    with torch.no_grad():
        call(**parts)  # fills the tables of the grid, which are constants of the graph
        try:
            with quiet():
                return torch.export.export(
                    call, (), kwargs=parts, dynamic_shapes={name: {0: size} for name in parts}, strict=False
                )
        except RuntimeError as error:  # all of torch.export's own exceptions are
            name = call.surrogate.config.name
            raise UserError(f"torch.export cannot follow the model {name!r}: {first_line(error)}") from error


def require_packages() -> None:
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"export to ONNX needs {', '.join(missing)}: pip install 'factformer[onnx]'")


def write_torch(program: torch.export.ExportedProgram, path: Path, information: str) -> None:
    with quiet():  # it warns of constants that are views, and writes them whole
        torch.export.save(program, path, extra_files={INFORMATION: information})


def write_onnx(program: torch.export.ExportedProgram, path: Path, information: str, model: str) -> None:
    num_bytes = sum(t.numel() * t.element_size() for t in program.state_dict.values())
    if num_bytes > LARGEST_ONNX:
        raise UserError(f"the model {model!r} is too large for one ONNX file; use --format torch")
    try:
        with quiet():
            converted = torch.onnx.export(
                program.run_decompositions(REWRITTEN) if _needs_rewriting(program) else program,
                input_names=[spec.arg.name for spec in program.graph_signature.input_specs if _is_input(spec)],
                output_names=["frames"],
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = first_line(_root(error))
        if "complex" in str(_root(error)):
            reason = "it computes with complex numbers, which ONNX does not know"
        raise UserError(f"the model {model!r} cannot be written as ONNX: {reason}; use --format torch") from error
    assert converted is not None
    _name_the_batch(converted.model)
    converted.model.metadata_props[INFORMATION] = information
    converted.save(path, external_data=False)


def layer_norm(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """The same in operators that ONNX Runtime rounds well.

    It adds the values of a row one after the other: over a million points of a domain that left 5 of 7 digits. So a
    normalisation over several axes takes its means axis by axis.
    """
    if len(shape) == 1:
        normalized: Tensor = torch.ops.aten.native_layer_norm.default(x, shape, weight, bias, eps)[0]
        return normalized
    mean, axes = x, range(-len(shape), 0)
    for axis in axes:
        mean = mean.mean(axis, keepdim=True)
    centred = x - mean
    variance = centred * centred
    for axis in axes:
        variance = variance.mean(axis, keepdim=True)
    result = centred * (variance + eps).rsqrt()
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(Q Kᵀ / √d + mask) V`` with any number of leading axes; the converter knows two of them."""
    assert not is_causal and not enable_gqa and not dropout_p, "no model of ours asks for it"
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-1, -2)
    if attn_mask is not None:
        is_choice = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if is_choice else scores + attn_mask
    return scores.softmax(-1) @ value


LAYER_NORM = torch.ops.aten.layer_norm.default
ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
REWRITTEN = {LAYER_NORM: layer_norm, ATTENTION: attention}
"""Operators that are taken apart before the conversion to ONNX."""


def write_aoti(program: torch.export.ExportedProgram, path: Path) -> None:
    """Compile the graph to machine code of this computer."""
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    try:
        with quiet():
            aoti_compile_and_package(program, package_path=str(path))
    except InvalidCxxCompiler:
        raise UserError("AOTInductor needs a C++ compiler, such as g++: install one or use --format torch") from None
    except CppCompileError as error:
        reason = first_line(error)
        raise UserError(f"AOTInductor cannot compile this surrogate here: {reason}; use --format torch") from error


def require_loadable(path: Path) -> None:
    """Load machine code in a process of its own, which it takes with it where it does not fit the libraries here."""
    load = "import sys, torch._inductor; torch._inductor.aoti_load_package(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", load, str(path)], capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] if done.returncode > 0 else [f"signal {-done.returncode}"]
        raise UserError(
            f"this torch cannot load what its AOTInductor compiled ({''.join(reason)}), so it is not kept; "
            "use --format torch"
        )


def quiet() -> AbstractContextManager[None]:
    """Without what the exporters say about themselves and about packages that are not needed here."""
    return silenced("torch.onnx", logging.ERROR)


def _needs_rewriting(program: torch.export.ExportedProgram) -> bool:
    """Whether there are normalisations over several axes, or attention with other than four."""
    return any(
        node.target is ATTENTION or (node.target is LAYER_NORM and len(node.args[1]) > 1)
        for node in program.graph.nodes
    )


def _is_input(spec: Any) -> bool:
    return bool(spec.kind == torch.export.graph_signature.InputKind.USER_INPUT)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _name_the_batch(model: Any) -> None:
    """Call the one open dimension ``batch`` wherever it stands."""
    import onnx_ir

    graph = model.graph
    (symbol,) = {str(value.shape[0]) for value in graph.inputs}
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        if value.shape is not None:
            names = ["batch" if str(dim) == symbol else dim for dim in value.shape]
            value.shape = onnx_ir.Shape(names)
