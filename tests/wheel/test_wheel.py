"""The road of a new user, from a wheel in an empty environment outside of any checkout.

List, demo with its bundle, load, train on NetCDF and on zarr, export, predict with onnxruntime alone, serve and predict
over HTTP. The environment holds the wheel; its dependencies are those of the environment that runs the tests, without
the editable installation of the checkout in it. `make wheel-test` runs it.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DEADLINE = 600
"""Seconds that a single command may take on a busy machine."""


def run(command, folder, environment, **options):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE,
        **options,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the files that git knows or would take, so that no leftover of an earlier build gets in."""
    source = tmp_path_factory.mktemp("source")
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT, os.environ)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    out = tmp_path_factory.mktemp("dist")
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source]
    run([sys.executable, "-m", "pip", *build], out, os.environ)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def user(wheel, tmp_path_factory):
    """What runs commands and Python of a user: nothing of the checkout is on any path."""
    folder, home = tmp_path_factory.mktemp("user"), tmp_path_factory.mktemp("home")
    place = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(place, with_pip=False)
    scripts = place / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / Path(sys.executable).name
    library = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], home, {}).strip())
    # A path in a .pth file brings packages and not their .pth files: the editable installation stays out.
    (library / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    keep = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FACTFORMER", "XDG", "PIP"))
    }
    environment = {**keep, "HOME": str(home), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "MPLBACKEND": "agg"}
    pip = [sys.executable, "-m", "pip", "--python", python]
    run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], home, {**os.environ, "PYTHONPATH": ""})
    return User(folder, environment, python, scripts / "factformer")


class User:
    def __init__(self, folder, environment, python, program):
        self.folder, self.environment, self.program = folder, environment, program
        self.interpreter = python

    def __call__(self, *words):
        return run([self.program, *words], self.folder, self.environment)

    def python(self, code):
        return run([self.interpreter, "-c", code], self.folder, self.environment)


def test_the_package_is_the_one_of_the_wheel(user):
    path = Path(user.python("import factformer; print(factformer.__file__)").strip())
    assert ROOT not in path.parents and path.is_relative_to(user.interpreter.parents[1])


def test_list_and_zoo(user):
    listed = json.loads(user("list", "--json"))
    assert sorted(listed["bundles"]) == ["kolmogorov-128", "kolmogorov-64-small"]
    assert Path(listed["bundles"]["kolmogorov-128"]).is_relative_to(user.interpreter.parents[1])
    assert "factformer_plus" in listed["models"] and "kolmogorov_flow" in listed["problems"]
    states = {row["name"]: row["state"] for row in json.loads(user("zoo", "list", "--json"))}
    assert states["kolmogorov-128"] == "here" and states["smoke-64"] == "elsewhere"
    assert json.loads(user("zoo", "verify", "--json")) == {"kolmogorov-128": "ok", "kolmogorov-64-small": "ok"}


def test_load_and_roll_out_by_name(user):
    user.python(
        "import factformer, torch\n"
        "ours = factformer.load('kolmogorov-128')\n"
        "with torch.no_grad(): frames = list(factformer.rollout(ours, torch.randn(1, 10, 128, 128, 1), 2))\n"
        "assert len(frames) == 2 and frames[0].shape == (1, 128, 128, 1)\n"
    )


def test_demo_with_its_bundle(user):
    said = user.python(
        "from factformer.demo import run_demo\n"
        "run_demo('demo', updates=2, trajectories={'train': 1, 'valid': 1, 'test': 1})\n"
    )
    assert "roll out the trained bundle kolmogorov-64-small" in said
    page = (user.folder / "demo" / "report" / "report.html").read_text(encoding="utf-8")
    assert "The bundle kolmogorov-64-small of the zoo" in page


FLOW = """
import numpy as np, xarray
x = np.arange(16) * 2 * np.pi / 16
t = np.arange(12) * 0.1
shift = np.arange(4)[:, None, None] + 5 * t[None, :, None]
waves = xarray.Dataset(
    {"height": (("trajectory", "time", "x"), np.sin(x - shift).astype("float32"))}, {"time": t, "x": x}, {"periodic": 1}
)
"""


@pytest.mark.parametrize("format", ["netcdf", "zarr"])
def test_train_on_a_file(user, format):
    pytest.importorskip("xarray")
    name, write = {"netcdf": ("flow.nc", "to_netcdf"), "zarr": ("flow.zarr", "to_zarr")}[format]
    user.python(f"{FLOW}\nwaves.{write}({name!r})")
    user("convert", name, "--out", f"data-{format}", "--split", "train")
    user.python(
        "import factformer\n"
        "from factformer.data import open_dataset\n"
        f"train = open_dataset('data-{format}', 'train')\n"
        f"factformer.fit(train, updates=2, settings={SIZES!r}, out='run-{format}', progress=False)\n"
    )
    assert (user.folder / f"run-{format}" / "bundle" / "model.safetensors").is_file()
    assert f"run-{format}" in json.loads(user("list", "--json"))["runs"]


SIZES = {"model.dim": 8, "model.depth": 1, "training.batch_size": 2}


def test_export_and_predict_with_onnxruntime_alone(user):
    pytest.importorskip("onnxruntime")
    user("export", "kolmogorov-128", "--out", "flow.onnx")
    context = np.random.default_rng(0).standard_normal((1, 10, 128, 128, 1)).astype(np.float32)
    np.save(user.folder / "context.npy", context)
    user.python(
        "import sys\n"
        "sys.modules['torch'] = sys.modules['factformer'] = None\n"  # to import them is an error from here on
        "sys.path.insert(0, '.')\n"
        "import numpy as np\n"
        "from flow_onnx_rollout import load, rollout\n"
        "np.save('onnx.npy', rollout(load('flow.onnx'), 2, context=np.load('context.npy')))\n"
    )
    user("rollout", "kolmogorov-128", "--input", "context.npy", "--frames", "2", "--out", "ours.npy")
    found, expected = (np.load(user.folder / name) for name in ("onnx.npy", "ours.npy"))
    assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected)


def test_serve_and_predict_over_http(user):
    pytest.importorskip("uvicorn")
    command = [str(user.program), "serve", "kolmogorov-128", "--port", "0", "--json"]
    with (user.folder / "serve.txt").open("w", encoding="utf-8") as errors:
        server = subprocess.Popen(
            command, cwd=user.folder, env=user.environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        text = ""
        while not text.strip().endswith("}"):
            line = server.stdout.readline()
            assert line, (user.folder / "serve.txt").read_text(encoding="utf-8")
            text += line
        address = json.loads(text)["url"].rstrip("/")
        context = np.zeros((1, 10, 128, 128, 1), np.float32)
        request = io.BytesIO()
        np.savez(request, context=context, num_frames=1)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{address}/predict", request.getvalue(), timeout=DEADLINE) as answer:
            frames = np.load(io.BytesIO(answer.read()))["frames"]
        assert frames.shape == (1, 1, 128, 128, 1)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(DEADLINE) == 0
        server.stdout.close()
