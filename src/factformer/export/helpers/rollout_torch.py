"""Roll out a surrogate that `factformer export` wrote; needs torch alone.

frames = rollout(load("surrogate.pt2"), 16, context=context)

Tensors are float32 in physical units: context, forcing and the result (batch, frame, *grid, channel), static (batch,
*grid, channel), parameters (batch, parameter), mask (batch, *grid) boolean; give those that the surrogate was made for.
Forcing covers the context and all predicted frames.
"""

import torch

NUM_STEPS = 1  # frames that one call predicts


def load(path):
    """The exported program; it holds code: load only what you trust."""
    return torch.export.load(path).module()


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
            known["forcing"] = torch.cat([forcing, *[forcing[:, -1:]] * missing], dim=1)[:, window]
        given = {"context": context, **known}
        with torch.no_grad():
            predicted = model(**{name: part.contiguous() for name, part in given.items() if part is not None})
        frames.append(predicted)
        if context is not None:
            context = torch.cat([context, predicted], dim=1)[:, -num_context:]
    return torch.cat(frames, dim=1)[:, :num_frames]
