"""Roll out a surrogate that `factformer export` wrote; needs numpy and onnxruntime alone.

frames = rollout(load("surrogate.onnx"), 16, context=context)

Arrays are float32 in physical units: context, forcing and the result (batch, frame, *grid, channel), static (batch,
*grid, channel), parameters (batch, parameter), mask (batch, *grid) boolean; give those that the surrogate was made for.
Forcing covers the context and all predicted frames.
"""

import numpy as np
import onnxruntime

NUM_STEPS = 1  # frames that one call predicts


def load(path):
    """The model, ready to run on the CPU."""
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def rollout(model, num_frames, context=None, static=None, forcing=None, parameters=None, mask=None):
    """The `num_frames` frames that follow `context`, or the one frame of a steady problem."""
    known = {"static": static, "parameters": parameters, "mask": mask}
    frames, num_context = [], 0 if context is None else context.shape[1]
    if forcing is not None and forcing.shape[1] < num_context + num_frames:
        raise ValueError(f"forcing must cover {num_context} + {num_frames} frames, got {forcing.shape[1]}")
    for start in range(0, num_frames, NUM_STEPS):
        window = slice(start, start + num_context + NUM_STEPS)
        if forcing is not None:
            missing = max(0, window.stop - forcing.shape[1])  # of frames that are cut off below
            known["forcing"] = np.concatenate([forcing, *[forcing[:, -1:]] * missing], axis=1)[:, window]
        given = {"context": context, **known}
        (predicted,) = model.run(None, {name: part for name, part in given.items() if part is not None})
        frames.append(predicted)
        if context is not None:
            context = np.concatenate([context, predicted], axis=1)[:, -num_context:]
    return np.concatenate(frames, axis=1)[:, :num_frames]
