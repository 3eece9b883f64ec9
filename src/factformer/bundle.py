"""Bundles: a trained surrogate as a folder of ``model.safetensors`` and ``bundle.json``; no pickle anywhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from factformer import __version__, catalog, engine
from factformer.data.normalization import Normalizer
from factformer.errors import UserError
from factformer.problem import Problem
from factformer.surrogate import Surrogate

FORMAT = "factformer bundle"
FORMAT_VERSION = 1
WEIGHTS = "model.safetensors"
DESCRIPTION = "bundle.json"
FILES = {WEIGHTS, DESCRIPTION, "README.md"}


def save_bundle(
    surrogate: Surrogate,
    path: str | Path,
    provenance: dict[str, Any] | None = None,
    *,
    storage: torch.dtype | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``surrogate`` to the folder ``path``, whole or not at all.

    ``storage`` (``torch.float16`` or ``torch.bfloat16``) halves the file; the weights are float32 again when
    loaded. What is too large for 16 bits stays as it is.
    """
    target = Path(path)
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists already; choose another path or pass overwrite=True (--overwrite)")
    if target.exists() and not (target.is_dir() and {item.name for item in target.iterdir()} <= FILES):
        raise UserError(f"{target} holds other things than a bundle and is not replaced; choose another path")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the bundle {target}: {error.strerror or error}") from error
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in surrogate.state_dict().items()}
    if storage is not None:
        # Weights bear rounding; buffers such as the frequencies of Fourier features are multiplied by 2π x.
        weights = {name for name, parameter in surrogate.named_parameters() if parameter.dtype == torch.float32}
        shorter = {name: state[name].to(storage) for name in weights}
        state |= {name: t for name, t in shorter.items() if bool(t.isfinite().all())}
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        save_file(state, scratch / WEIGHTS)
        description = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "config": surrogate.config.model_dump(mode="json"),
            "marching_steps": surrogate.marching_steps,
            "problem": surrogate.problem.to_dict(),
            "normalization": surrogate.normalizer.to_dict(),
            "sha256": _checksum(scratch / WEIGHTS),
            "provenance": {
                "factformer": __version__,
                "torch": torch.__version__,
                **surrogate.provenance,
                **(provenance or {}),
            },
        }
        (scratch / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        shutil.copymode(scratch / DESCRIPTION, scratch / WEIGHTS)  # safetensors keeps its files from everyone else
        scratch.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        os.replace(scratch, target)
    except OSError as error:
        raise UserError(f"cannot write the bundle {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def load(path: str | Path) -> Surrogate:
    """The surrogate of a bundle, ready to predict; ``path`` is its folder or the name of one in the zoo."""
    folder = _find(path)
    description = _read_description(folder)
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise UserError(f"{folder} has no {WEIGHTS}: the bundle is incomplete")
    if _checksum(weights) != description.get("sha256"):
        raise UserError(f"{weights} does not match its checksum: the file is truncated or was changed; copy it again")
    try:
        state = load_file(weights)
    except SafetensorError as error:
        raise UserError(f"{weights} is not a safetensors file: {error}") from None
    try:
        config = catalog.find("models", description["config"]["name"]).Config.parse(description["config"], "model")
        problem = Problem.from_dict(description["problem"])
        normalizer = Normalizer.from_dict(description["normalization"])
        surrogate = Surrogate(problem, config, description["marching_steps"], normalizer)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / DESCRIPTION} is not a complete bundle description: {error}") from None
    if any(state[name].dtype == torch.float64 for name, _ in surrogate.named_parameters() if name in state):
        surrogate.double()
    # Statistics stay exact even where the weights are stored in 16 bits: they come from the description.
    exact = {f"normalizer.{name}": buffer for name, buffer in normalizer.state_dict().items()}
    try:
        surrogate.load_state_dict({**state, **exact})
    except RuntimeError as error:
        raise UserError(f"{weights} does not hold the weights of this model: {str(error).splitlines()[-1]}") from None
    surrogate.provenance = description.get("provenance", {})
    engine.attach(surrogate)
    return surrogate.eval()


def zoo() -> dict[str, Path]:
    """Bundles that can be loaded by name: those under ``zoo/`` and ``$FACTFORMER_ZOO``."""
    folders = [Path(p) for p in os.environ.get("FACTFORMER_ZOO", "").split(os.pathsep) if p]
    folders += [Path.cwd() / "zoo", Path(__file__).parents[2] / "zoo"]
    found: dict[str, Path] = {}
    for folder in folders:
        for item in sorted(folder.glob(f"*/{DESCRIPTION}")):
            found.setdefault(item.parent.name, item.parent)
    return found


def _find(path: str | Path) -> Path:
    folder = Path(path)
    if folder.is_dir():
        return folder / "bundle" if not (folder / DESCRIPTION).exists() and (folder / "bundle").is_dir() else folder
    if folder.exists():
        raise UserError(f"{folder} is a file; a bundle is a folder with {WEIGHTS} and {DESCRIPTION}")
    known = zoo()
    if str(path) in known:
        return known[str(path)]
    names = f" Bundles by name: {', '.join(sorted(known))}." if known else ""
    raise UserError(f"there is no bundle at {folder}.{names}")


def _read_description(folder: Path) -> dict[str, Any]:
    file = folder / DESCRIPTION
    if not file.is_file():
        if (folder / "checkpoints").is_dir():
            raise UserError(f"the run {folder} has not finished; go on with `factformer train --resume --out {folder}`")
        raise UserError(f"{folder} is not a bundle: it has no {DESCRIPTION}")
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{file} is not valid JSON: the bundle is damaged; copy it again") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UserError(f"{file} was not written by factformer")
    if description.get("version") != FORMAT_VERSION:
        raise UserError(
            f"{file} has bundle version {description.get('version')}, this factformer reads {FORMAT_VERSION}; "
            "install a matching version"
        )
    return description


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
