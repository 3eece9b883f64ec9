"""A surrogate as a program of its own, that runs without factformer: ``torch.export``, AOTInductor or ONNX."""
