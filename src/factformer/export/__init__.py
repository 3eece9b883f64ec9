"""A surrogate as a program of its own, that runs without factformer: ``torch.export``, AOTInductor or ONNX."""

from factformer._support.lazy import load_lazily

__all__ = load_lazily(
    __name__,
    {"export": "factformer.export.exporting", "Exported": "factformer.export.exporting"},
)
