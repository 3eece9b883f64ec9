"""Factorized attention written straight from the paper's equations: dense, explicit sums, float64.

Takes the weights of a `FactorizedAttention` but none of its code: γ is applied at every point before the
pooling, kernels are filled entry by entry, and the full Kronecker kernel is multiplied with all values. With a mask
every sum runs over the points inside alone: those outside are never looked at.
"""

import itertools
import math

import torch


def axis_points(grid, m):
    if grid.coordinates[m] is not None:
        return list(grid.coordinates[m])
    size, length = grid.shape[m], grid.extent[m]
    if grid.periodic[m]:
        return [j * length / size for j in range(size)]
    if grid.points[m] == "cells":
        return [(j + 0.5) * length / size for j in range(size)]
    return [j * length / (size - 1) for j in range(size)]


def axis_quadrature(grid, m):
    x = axis_points(grid, m)
    size, length = len(x), grid.extent[m]
    if grid.coordinates[m] is None and (grid.periodic[m] or grid.points[m] == "cells"):
        return [1 / size] * size
    weights = []
    for j in range(size):
        left = x[j] - x[j - 1] if j > 0 else (x[0] + length - x[-1] if grid.periodic[m] else 0.0)
        right = x[j + 1] - x[j] if j + 1 < size else (x[0] + length - x[-1] if grid.periodic[m] else 0.0)
        weights.append((left + right) / 2 / length)
    return weights


def layer_norm(x, norm):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight + norm.bias


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def rotation(vector, position, options, grid, m):
    """R(x) of eq. 3 applied to one query or key."""
    if options.rotary == "off":
        return vector
    size = vector.shape[-1]
    out = []
    for pair in range(size // 2):
        frequency = options.rotary_scale * 10000 ** (-2 * pair / size)
        if options.rotary == "periodic" and grid.periodic[m]:
            frequency = round(frequency * grid.extent[m] / (2 * math.pi)) * 2 * math.pi / grid.extent[m]
        c, s = math.cos(frequency * position), math.sin(frequency * position)
        a, b = vector[2 * pair], vector[2 * pair + 1]
        out += [a * c - b * s, a * s + b * c]
    return torch.stack(out)


def points_inside(grid, mask):
    """The indices of the points of the domain, all of them where there is no mask."""
    return [index for index in itertools.product(*map(range, grid.shape)) if mask is None or bool(mask[index])]


def projected(attention, kernel, x, grid, m, mask=None):
    """φ of eq. 6 for one sample ``x: (*grid, dim)``: γ at every point, explicit quadrature, then h.

    A row for each point of the axis; None where no point of the domain has that coordinate.
    """
    quadrature = [axis_quadrature(grid, axis) for axis in range(grid.num_axes)]
    mlp, result = kernel.mlp, []
    for i in range(grid.shape[m]):
        total, measure = 0, 0.0
        for index in points_inside(grid, mask):
            if index[m] == i:
                weight = math.prod(quadrature[axis][j] for axis, j in enumerate(index) if axis != m)
                total, measure = total + weight * (kernel.gamma.weight @ x[index]), measure + weight
        if measure == 0:
            result.append(None)
            continue
        row = layer_norm(total / measure, kernel.norm)
        hidden = mlp.expand.weight @ row + mlp.expand.bias
        half = hidden.shape[-1] // 2
        result.append(mlp.contract.weight @ (hidden[:half] * gelu(hidden[half:])) + mlp.contract.bias)
    return result


def kernel_matrices(attention, kernel, x, grid, m, mask=None):
    """``A_ij = w_j q̃_i · k̃_j`` of every head, entry by entry (eq. 8); zero for coordinates outside the domain."""
    rows = projected(attention, kernel, x, grid, m, mask)
    occupied = [i for i, row in enumerate(rows) if row is not None]
    phi = torch.stack([rows[i] for i in occupied])
    points, weights = ([values[i] for i in occupied] for values in (axis_points(grid, m), axis_quadrature(grid, m)))
    options = kernel.options
    matrices = []
    for head in range(attention.heads):
        rows = slice(head * kernel.kernel_dim, (head + 1) * kernel.kernel_dim)
        queries = phi @ kernel.to_queries.weight[rows].T
        keys = phi @ kernel.to_keys.weight[rows].T
        encoded_q = [rotation(q, p, options, grid, m) for q, p in zip(queries, points, strict=True)]
        encoded_k = [rotation(k, p, options, grid, m) for k, p in zip(keys, points, strict=True)]
        scale = 1 / math.sqrt(kernel.kernel_dim) if options.scaling else 1.0
        entries = [[scale * (q * k).sum() for k in encoded_k] for q in encoded_q]
        if options.softmax:
            raw = [[w * torch.exp(e) for e, w in zip(row, weights, strict=True)] for row in entries]
            matrix = [[value / sum(row) for value in row] for row in raw]
        else:
            matrix = [[w * e for e, w in zip(row, weights, strict=True)] for row in entries]
        whole = torch.zeros(len(axis_points(grid, m)), len(axis_points(grid, m)), dtype=phi.dtype)
        whole[torch.tensor(occupied)[:, None], torch.tensor(occupied)] = torch.stack([torch.stack(r) for r in matrix])
        matrices.append(whole)
    return matrices


def full_kernel(attention, matrices):
    """The kernel between all points: the axes' kernels multiplied, or in parallel each with identities and added."""
    identities = [torch.eye(len(matrix), dtype=matrix.dtype) for matrix in matrices]
    terms = [matrices]
    if attention.parallel:
        terms = [[*identities[:m], matrices[m], *identities[m + 1 :]] for m in range(len(matrices))]
    total = 0
    for term in terms:
        full = torch.ones(1, 1, dtype=matrices[0].dtype)
        for matrix in term:
            full = torch.kron(full, matrix)
        total = total + full
    return total


def attention_oracle(attention, u, grid, mask=None):
    """The whole layer for a batch ``u: (batch, *grid, dim)``; zero outside the mask ``(batch, *grid)``."""
    head_dim = attention.to_values.weight.shape[0] // attention.heads
    measure = torch.ones((), dtype=u.dtype)
    for m in range(grid.num_axes):
        measure = torch.kron(measure.reshape(-1), torch.tensor(axis_quadrature(grid, m), dtype=u.dtype))
    results = []
    for sample, own in zip(u, [None] * len(u) if mask is None else mask, strict=True):
        domain = [
            sum(i * math.prod(grid.shape[m + 1 :]) for m, i in enumerate(index)) for index in points_inside(grid, own)
        ]
        weights = measure[domain] / measure[domain].sum()
        x = layer_norm(sample, attention.norm)
        values = (x @ attention.to_values.weight.T).reshape(grid.num_points, -1)[domain]
        per_axis = [kernel_matrices(attention, k, x, grid, m, own) for m, k in enumerate(attention.kernels)]
        heads = []
        for head in range(attention.heads):
            full = full_kernel(attention, [matrices[head] for matrices in per_axis])[domain][:, domain]
            z = full @ values[:, head * head_dim : (head + 1) * head_dim]
            mean = (weights[:, None] * z).sum() / head_dim
            variance = (weights[:, None] * (z - mean) ** 2).sum() / head_dim
            heads.append((z - mean) / torch.sqrt(variance + attention.norm_eps))
        joined = torch.cat(heads, dim=-1)
        hidden = gelu(joined @ attention.to_output[0].weight.T)
        outside = torch.zeros(grid.num_points, attention.dim, dtype=u.dtype)
        result = outside.index_copy(0, torch.tensor(domain), hidden @ attention.to_output[2].weight.T)
        results.append(result.reshape(*grid.shape, -1))
    return torch.stack(results)
