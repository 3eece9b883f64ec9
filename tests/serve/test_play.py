"""Flows that pages play with: the numbers of the library, stirring, comparing, and bounds on everything."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from serve_bundles import STEPS, as_arrays, everything, full_batch, obstacles, small_surrogate, steady
from serve_client import client_of, loaded, npz, refused

from factformer import Batch, rollout, simulate
from factformer.metrics import energy_spectrum, relative_l2_per_frame
from factformer.pdes import find_pde
from factformer.serve.limits import Limits


@pytest.fixture
def client(surrogate):
    with client_of(surrogate) as found:
        yield found


class Page:
    """What the page's script does: a flow, doings, pictures."""

    def __init__(self, client, content=b"", seed=0):
        response = client.post(f"/play?seed={seed}", content=content)
        assert response.status_code == 200, response.text
        self.client, self.description = client, response.json()
        self.address = f"/play/{self.description['key']}"

    def post(self, **doings):
        return self.client.post(self.address, content=json.dumps(doings))

    def do(self, **doings):
        """The header of the next picture, and its planes by name as (up, right)."""
        response = self.post(**doings)
        assert response.status_code == 200, response.text
        (length,) = struct.unpack_from("<I", response.content)
        header = json.loads(response.content[4 : 4 + length])
        numbers = np.frombuffer(response.content, "<f4", offset=4 + length)
        shown = self.description["planes"][doings.get("plane", 0)]
        planes = numbers.reshape(len(header["pictures"]), shown["height"], shown["width"])
        return header, dict(zip(header["pictures"], planes, strict=True))

    def context(self):
        return torch.from_numpy(loaded(self.client.get(f"{self.address}/state.npz"))["context"])


STIR = {"at": [0.3, 0.6], "along": [1.0, 0.2], "radius": 0.08, "strength": 2.0}


def test_the_surrogate_goes_on_as_the_library_rolls_out(client, surrogate):
    page = Page(client)
    context = page.context()
    with torch.no_grad():
        expected = list(rollout(surrogate, context, 3))
    for number, frame in enumerate(expected, start=1):
        header, planes = page.do(steps=1)
        assert header["number"] == number
        np.testing.assert_array_equal(planes["prediction"], frame[0, ..., 0].T.numpy())
        assert header["spectra"]["prediction"] == energy_spectrum(frame)[0].tolist()


def test_a_random_start_is_a_flow_of_the_equation(client, surrogate):
    """Made as data are: on a finer grid, after the warm-up; another seed is another flow."""
    context = Page(client).context()
    assert context.shape == (1, 2, 24, 24, 1)
    assert torch.equal(context, Page(client).context())
    assert not torch.equal(context, Page(client, seed=1).context())
    equation = find_pde("kolmogorov_flow")
    grid = equation.grid((48, 48))
    initial = equation.sample_initial(grid, [torch.Generator().manual_seed(0)], dtype=torch.float32, device="cpu")
    frames = simulate(equation, initial, 35, 1 / 16, **surrogate.provenance["data_parameters"])
    assert torch.allclose(context, equation.downsample(frames[:, -2:], (24, 24)), atol=1e-5)


def test_the_comparison_gives_the_numbers_of_the_library(client, surrogate):
    page = Page(client)
    page.do(steps=2)
    context = page.context()
    assert page.do(compare=True)[0]["errors"] == {"vorticity": 0.0}
    truth = simulate("kolmogorov_flow", context[:, -1], 5, 1 / 16, **surrogate.provenance["data_parameters"])
    with torch.no_grad():
        predicted = torch.stack(list(rollout(surrogate, context, 4)), dim=1)
    errors = relative_l2_per_frame(predicted, truth[:, 1:])[0].tolist()
    for since, error in enumerate(errors, start=1):
        header, planes = page.do(steps=1)
        assert header["since"] == since
        assert header["errors"]["vorticity"] == pytest.approx(error, rel=1e-5)
        np.testing.assert_allclose(planes["truth"], truth[0, since, ..., 0].T, rtol=1e-5, atol=1e-5)
    header, planes = page.do(compare=False)
    assert header["since"] is None and list(planes) == ["prediction"]


def test_stirring_changes_every_frame_that_is_seen_and_the_solver(client):
    page = Page(client)
    page.do(compare=True)
    before = page.context()
    header, planes = page.do(stirs=[STIR])
    added = page.context() - before
    assert float(added.abs().max()) > 1
    assert torch.allclose(added[:, 0], added[:, 1], atol=1e-5)
    assert abs(float(added.mean())) < 1e-6
    np.testing.assert_array_equal(planes["truth"], planes["prediction"])
    place = np.unravel_index(added[0, -1, ..., 0].abs().argmax(), (24, 24))
    assert np.hypot(place[0] / 24 - 0.3, place[1] / 24 - 0.6) < 0.12
    assert header["errors"]["vorticity"] == 0
    assert page.do(steps=1)[0]["errors"]["vorticity"] > 0
    page.do(restart=True)
    assert torch.equal(page.context(), before)


def test_a_saved_state_can_be_predicted_from_and_loaded(client, surrogate):
    page = Page(client)
    page.do(stirs=[STIR], steps=2)
    saved = client.get(f"{page.address}/state.npz").content
    answer = loaded(client.post("/predict", content=saved))
    again = Page(client, saved)
    assert torch.equal(again.context(), page.context())
    _, planes = page.do(steps=1)
    np.testing.assert_array_equal(answer["frames"][0, 0, ..., 0].T, planes["prediction"])


def test_everything_that_a_problem_can_have():
    """Two fields, walls, a body, forcing that ends, a parameter; the numbers are those of a roll-out."""
    surrogate = everything()
    batch = full_batch(surrogate, num_frames=3)
    with client_of(surrogate) as client:
        refused(client.post("/play"), 422, "no equation of the catalog", "npz")
        page = Page(client, npz(**as_arrays(batch)))
        assert [field["label"] for field in page.description["fields"]] == [
            "velocity₁",
            "velocity₂",
            "pressure",
            "vorticity",
        ]
        assert not page.description["can_compare"]
        (parameter,) = page.description["parameters"]
        assert parameter["name"] == "reynolds" and parameter["low"] < parameter["high"]
        refused(page.post(compare=True), 422, "no solver")
        with torch.no_grad():
            expected = list(rollout(surrogate, batch, 3))
        for frame in expected:
            header, planes = page.do(component=2, steps=1)
            inside = batch.mask[0].T.numpy()
            np.testing.assert_array_equal(np.isnan(planes["prediction"]), ~inside)
            np.testing.assert_array_equal(planes["prediction"][inside], frame[0, ..., 2].T.numpy()[inside])
        assert not header["ended"] and header["spectra"] == {}
        assert page.do(steps=1)[0]["ended"]
        header, _ = page.do(restart=True, parameters={"reynolds": 0.25}, stirs=[STIR], steps=1)
        assert header["parameters"] == {"reynolds": 0.25} and header["number"] == 1
        refused(page.post(parameters={"mach": 1.0}), 422, "parameters are reynolds")


def test_bodies_and_a_parameter_reach_the_solver():
    surrogate = obstacles()
    with client_of(surrogate) as client:
        page = Page(client)
        (slider,) = page.description["parameters"]
        assert slider == {
            "name": "viscosity",
            "value": pytest.approx(np.exp(-4)),
            "low": pytest.approx(0.01),
            "high": pytest.approx(0.04),
            "log": True,
            "whole": False,
        }
        header, _ = page.do(parameters={"viscosity": 0.03}, stirs=[STIR], compare=True)
        assert header["parameters"]["viscosity"] == pytest.approx(0.03)
        state = loaded(client.get(f"{page.address}/state.npz"))
        batch = Batch(**{name: torch.from_numpy(values) for name, values in state.items()})
        assert not batch.mask.all()
        truth = simulate(
            "obstacle_flow",
            batch.context[:, -1],
            4,
            surrogate.problem.frame_dt,
            mask=batch.mask,
            viscosity=0.03,
            penalisation=0.025,
        )
        with torch.no_grad():
            predicted = torch.stack(list(rollout(surrogate, batch, 3)), dim=1)
        error = relative_l2_per_frame(predicted, truth[:, 1:], mask=batch.mask)[0, -1].item()
        header, planes = page.do(component=1, steps=3)
        assert header["errors"]["velocity"] == pytest.approx(error, rel=1e-4)
        _, turning = page.do(component=2)
        assert page.description["fields"][2]["label"] == "vorticity"
        u1, u2 = truth[0, -1].unbind(-1)
        spacing = 2 * 8 / 32
        expected = (u2.roll(-1, 0) - u2.roll(1, 0) - u1.roll(-1, 1) + u1.roll(1, 1)) / spacing
        np.testing.assert_allclose(turning["truth"], expected.where(batch.mask[0], np.nan).T, atol=1e-5)
        for frames, kind in ((predicted[0, -1], "prediction"), (truth[0, -1], "truth")):
            np.testing.assert_allclose(planes[kind], frames[..., 1].where(batch.mask[0], np.nan).T, atol=1e-5)


def test_a_steady_problem_is_drawn_on():
    surrogate = steady()
    with client_of(surrogate) as client:
        page = Page(client)
        header, planes = page.do(compare=True)
        static = torch.from_numpy(planes["input"].T.copy())[None, ..., None]
        solution = simulate("darcy_flow", static)
        predicted = surrogate(Batch(static=static)).detach()
        error = float(relative_l2_per_frame(predicted, solution))
        assert header["errors"]["solution"] == pytest.approx(error, rel=1e-5)
        changed, after = page.do(stirs=[{**STIR, "strength": 5.0}, {**STIR, "strength": -5.0, "at": [0.7, 0.7]}])
        assert not np.array_equal(after["input"], planes["input"])
        assert after["input"].min() >= planes["input"].min() and after["input"].max() <= planes["input"].max()
        assert changed["errors"]["solution"] != header["errors"]["solution"]
        assert page.do(steps=1)[0]["number"] == 0


@pytest.mark.parametrize(("name", "size", "planes"), [("burgers", 32, 1), ("isotropic_turbulence", 8, 3)])
def test_lines_and_volumes(name, size, planes):
    surrogate = small_surrogate(find_pde(name).problem(size), marching_steps=1)
    surrogate.provenance = {"problem": name, "data_parameters": {"dt": 0.025}}
    with client_of(surrogate) as client:
        page = Page(client)
        assert len(page.description["planes"]) == planes
        for plane in range(planes):
            for component in range(len(page.description["fields"])):
                stir = {"at": [0.5] if planes == 1 else [0.5, 0.5], "strength": 0.5}
                _, pictures = page.do(plane=plane, component=component, stirs=[stir], steps=1)
                assert np.isfinite(pictures["prediction"]).all()


WRONG = {
    "an unknown doing": ({"jump": 1}, "jump"),
    "too many steps": ({"steps": 1000}, "steps"),
    "a place outside": ({"stirs": [{"at": [2.0, 0.5]}]}, "stirs"),
    "a stroke of no number": ({"stirs": [{"at": [0.5, 0.5], "strength": "NaN"}]}, "strength"),
    "a place on a line": ({"stirs": [{"at": [0.5]}]}, "2 numbers in at"),
    "a direction on a line": ({"stirs": [{"at": [0.5, 0.5], "along": [1]}]}, "as many or none in along"),
    "too many strokes": ({"stirs": [{"at": [0.5, 0.5]}] * 100}, "stirs"),
    "another component": ({"component": 7}, "1 components"),
    "another plane": ({"plane": 3}, "1 planes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_doings_that_cannot_be_done(client, name):
    doings, word = WRONG[name]
    refused(Page(client).post(**doings), 422, word)


def test_requests_that_lead_nowhere(client):
    page = Page(client)
    refused(client.post("/play/unknown", content="{}"), 404, "no longer kept")
    refused(client.post(page.address, content="{"), 400, "JSON")
    refused(client.post(page.address, content="[]"), 400, "JSON object")
    refused(client.post(page.address, content="[" * 60_000), 400, "JSON")
    refused(client.post(page.address, content=" " * 100_000), 413)
    refused(client.post("/play?seed=-1"), 422, "seed")
    refused(client.post("/play", content=b"garbage"), 415)
    refused(client.post("/play", content=npz(context=np.zeros((1, 1, 24, 24, 1), np.float32))), 422, "2 context frames")
    assert client.delete(page.address).status_code == 204
    refused(page.post(steps=1), 404, "no longer kept")


def test_flows_are_few_and_expire(surrogate, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with client_of(surrogate, Limits(sessions=2, session_seconds=500)) as client:
        first, second = Page(client), Page(client)
        response = client.post("/play")
        refused(response, 503, "2 pages are open")
        assert response.headers["retry-after"] == "1"
        now[0] = 100.0
        second.do(steps=1)
        third = Page(client)  # the first one was left alone
        refused(first.post(steps=1), 404)
        second.do(steps=1)
        now[0] = 1000.0
        refused(third.post(steps=1), 404)


def test_a_first_state_that_takes_too_long_is_given_up(surrogate):
    with client_of(surrogate, replace(Limits(), seconds=0.0)) as client:
        refused(client.post("/play"), 504, "first state", "npz")


def test_the_page_stands_alone(client):
    page = client.get("/").text
    script, style = client.get("/assets/page.js"), client.get("/assets/page.css")
    assert script.headers["content-type"].startswith("text/javascript")
    assert style.headers["content-type"].startswith("text/css")
    for text in (page, script.text, style.text, client.get("/docs").text):
        for address in ("https://", "//cdn", "@import", "http://"):
            known = text.replace("http://www.w3.org/2000/svg", "").replace("http://127.0.0.1:8000/predict", "")
            assert address not in known
    assert "reynolds 100" in page


def test_a_flow_that_leaves_the_finite_numbers_says_so_each_time(surrogate):
    """The second time it was taken for the end of the forcing."""
    with client_of(surrogate) as client:
        page = Page(client, npz(context=np.full((1, 2, 24, 24, 1), 3e38, np.float32)))
        for _ in range(2):
            refused(page.post(steps=4), 422, "left the finite numbers by frame", "restart it")
        page.do(restart=True)


def test_a_whole_number_stays_whole():
    problem = replace(find_pde("kolmogorov_flow").problem(24), num_context_frames=2, parameters=("forcing_wavenumber",))
    surrogate = small_surrogate(problem, **STEPS)
    for name, value in (("mean", 2.6), ("log", 0.0), ("min", 2.0), ("max", 4.0)):
        getattr(surrogate.normalizer, f"parameters_{name}").fill_(value)
    surrogate.provenance = {
        "problem": "kolmogorov_flow",
        "data_parameters": {"reynolds": 100.0, "forcing_wavenumber": "2..4"},
    }
    with client_of(surrogate) as client:
        page = Page(client)
        (slider,) = page.description["parameters"]
        assert (slider["value"], slider["whole"], slider["log"]) == (3.0, True, False)
        header, _ = page.do(parameters={"forcing_wavenumber": 4}, compare=True, steps=1)
        assert header["parameters"]["forcing_wavenumber"] == 4
        assert header["errors"]["vorticity"] > 0
