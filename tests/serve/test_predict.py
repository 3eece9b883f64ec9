"""Predictions over HTTP: the numbers of the library, and one clear line for everything that is refused."""

from __future__ import annotations

import html
import io
import json
import re
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from serve_bundles import as_arrays, everything, full_batch, obstacles, steady
from serve_client import client_of, loaded, npz, refused

from factformer import rollout
from factformer.serve.arrays import read_npz
from factformer.serve.limits import MEGABYTE, Limits, Refusal


@pytest.fixture(scope="module")
def client(surrogate):
    with client_of(surrogate) as found:
        yield found


def expected(surrogate, batch, num_frames):
    with torch.no_grad():
        return torch.stack(list(rollout(surrogate, batch, num_frames)), dim=1).numpy()


def test_npz_in_and_out_gives_the_numbers_of_the_library(client, surrogate):
    batch = full_batch(surrogate, size=3)
    answer = loaded(client.post("/predict", content=npz(**as_arrays(batch), num_frames=4)))
    np.testing.assert_array_equal(answer["frames"], expected(surrogate, batch, 4))
    assert answer["frame_dt"] == surrogate.problem.frame_dt
    assert list(answer["fields"]) == ["vorticity"]


def test_the_example_of_the_page_builds_the_request_it_shows():
    with client_of(everything()) as client:
        page = html.unescape(client.get("/docs").text)
        (example,) = re.findall(r"<code>(import io, urllib.*?)request = urllib", page, re.DOTALL)
        names: dict[str, object] = {}
        exec(example, names)
        assert client.post("/predict", content=names["body"].getvalue()).status_code == 200


def test_parameters_outside_the_range_of_training_are_said_in_the_answer():
    surrogate = obstacles()
    with client_of(surrogate) as client:
        batch = full_batch(surrogate)
        for value, warned in ((0.02, False), (0.5, True)):
            given = as_arrays(batch._replace(parameters=torch.full_like(batch.parameters, value)))
            answer = loaded(client.post("/predict", content=npz(**given, num_frames=1)))
            assert ("warning" in answer) == warned
        assert "viscosity=0.5 outside 0.01 to 0.04" in str(answer["warning"])


def test_json_in_and_out_gives_the_same_numbers(client, surrogate):
    batch = full_batch(surrogate)
    body = {name: values.tolist() for name, values in as_arrays(batch).items()}
    response = client.post("/predict", json={**body, "num_frames": 2}, headers={"Accept": "application/json"})
    assert response.headers["content-type"] == "application/json"
    frames = np.asarray(response.json()["frames"], dtype=np.float32)
    np.testing.assert_array_equal(frames, expected(surrogate, batch, 2))


def test_every_part_of_a_batch_arrives():
    surrogate = everything()
    batch = full_batch(surrogate, num_frames=3, size=2)
    with client_of(surrogate) as client:
        answer = loaded(client.post("/predict", content=npz(**as_arrays(batch), num_frames=3)))
        named = as_arrays(batch)
        del named["context"], named["static"], named["parameters"]
        by_name = {
            "context.velocity": batch.context[..., :2].numpy(),
            "context.pressure": batch.context[..., 2].numpy(),
            "static.depth": batch.static.numpy(),
            "parameters.reynolds": batch.parameters[:, 0].numpy(),
        }
        again = loaded(client.post("/predict", content=npz(**named, **by_name, num_frames=3)))
    np.testing.assert_array_equal(answer["frames"], expected(surrogate, batch, 3))
    np.testing.assert_array_equal(again["frames"], answer["frames"])


def test_a_steady_problem_is_predicted_from_its_static_fields():
    surrogate = steady()
    batch = full_batch(surrogate)
    with client_of(surrogate) as client:
        answer = loaded(client.post("/predict", content=npz(static=batch.static.numpy())))
        refused(client.post("/predict", content=npz(context=batch.static.numpy())), 422, "no context")
    np.testing.assert_array_equal(answer["frames"], expected(surrogate, batch, 1))


def test_other_resolutions_are_served(client, surrogate):
    context = torch.rand(1, 2, 32, 32, 1)
    answer = loaded(client.post("/predict", content=npz(context=context.numpy())))
    np.testing.assert_array_equal(answer["frames"], expected(surrogate, context, 1))


CONTEXT = np.zeros((1, 2, 24, 24, 1), np.float32)
WRONG = {
    "nothing": (npz(num_frames=1), 422, "needs context frames"),
    "too few frames": (npz(context=CONTEXT[:, :1]), 422, "expected 2 context frames"),
    "no channels": (npz(context=CONTEXT[..., 0]), 422, "expected frames"),
    "too many channels": (npz(context=np.repeat(CONTEXT, 2, -1)), 422, "vorticity"),
    "not finite": (npz(context=np.full_like(CONTEXT, np.nan)), 422, "NaN"),
    "too large for float32": (npz(context=np.full(CONTEXT.shape, 1e300)), 422, "infinite"),
    "complex": (npz(context=CONTEXT.astype(complex)), 400, "complex"),
    "text": (npz(context=np.asarray(["a"])), 400, "no numbers"),
    "objects": (npz(context=np.asarray([None], dtype=object)), 400, "no numbers"),
    "a part it does not have": (npz(context=CONTEXT, static=CONTEXT[:, 0]), 422, "no static"),
    "a name that nothing has": (npz(contxt=CONTEXT), 422, "did you mean 'context'"),
    "no frames": (npz(context=CONTEXT, num_frames=0), 422, "num_frames must be 1 to 1000"),
    "too many frames": (npz(context=CONTEXT, num_frames=1001), 422, "num_frames must be 1 to 1000"),
    "half a frame": (npz(context=CONTEXT, num_frames=1.5), 422, "one whole number"),
    "no body": (b"", 415, "npz"),
    "garbage": (b"\x00\x01garbage", 415, "npz"),
    "a broken archive": (npz(context=CONTEXT)[:-40], 400, "damaged"),
    "flipped bytes": (npz(context=CONTEXT).replace(b"\x00" * 64, b"\x00" * 63 + b"\x01", 1), 400, "damaged"),
    "broken JSON": (b'{"context": [', 400, "not valid JSON"),
    "deep JSON": (b'{"context": ' + b"[" * 100_000, 400, "not valid JSON"),
    "ragged JSON": (b'{"context": [[1, 2], [3]]}', 422, "no array"),
    "words in JSON": (b'{"context": "all of it"}', 422, "no array of numbers"),
    "an object in an object": (b'{"context": {"vorticity": {"x": 1}}}', 422, "no array of numbers"),
    "very large JSON numbers": (json.dumps({"context": 10**400}).encode(), 422, "no array of numbers"),
}


@pytest.mark.parametrize("address", ["/predict", "/play"])
@pytest.mark.parametrize("value", [5, float("nan"), True, []], ids=str)
def test_a_context_that_is_no_list_of_samples_is_refused(client, address, value):
    refused(client.post(address, content=json.dumps({"context": value})), 422, "expected frames (batch, frame")


@pytest.mark.parametrize("value", [1, True], ids=str)
@pytest.mark.parametrize("part", ["static", "forcing", "parameters", "mask"])
def test_a_number_in_place_of_an_array_is_refused(part, value):
    with client_of(everything()) as client:
        body = {name: values.tolist() for name, values in as_arrays(full_batch(everything())).items()}
        refused(client.post("/predict", json={**body, part: value}), 422, "expected", "shape ()")


def test_parts_without_content_are_refused(client):
    body = {"context": CONTEXT.tolist()}
    for part in ("static", "forcing", "parameters", "mask"):
        refused(client.post("/predict", json={**body, part: {}}), 422, part)
    refused(client.post("/predict", content=npz(context=CONTEXT[:0])), 422, "context holds no samples")
    refused(client.post("/predict", content=npz(context=np.zeros(()))), 422, "expected frames (batch, frame")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_bodies_are_refused_in_one_line(client, name):
    body, status, word = WRONG[name]
    refused(client.post("/predict", content=body), status, word)


def archive_of(content, name="context.npy", method=zipfile.ZIP_DEFLATED, size=None):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(name, content)
    body = file.getvalue()
    if size is not None:  # what the directory says the member unpacks to
        body = body.replace(len(content).to_bytes(4, "little"), size.to_bytes(4, "little"))
    return body


def header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_archives_that_unpack_to_too_much_are_refused(client):
    bomb = archive_of(bytes(200 * MEGABYTE))
    assert len(bomb) < MEGABYTE
    refused(client.post("/predict", content=bomb), 413, "unpacks to more than 64 MB")
    liar = archive_of(header((1, 2, 24, 24, 1)) + bytes(100 * MEGABYTE), size=4096)
    refused(client.post("/predict", content=liar), 400, "damaged")
    many = npz(**{f"a{i}": np.zeros(1) for i in range(100)})
    refused(client.post("/predict", content=many), 413, "100 arrays")


def test_an_archive_that_lies_about_its_size_is_not_unpacked():
    liar = archive_of(header((16,)) + bytes(32 * MEGABYTE), size=200)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="damaged"):
            read_npz(liar, 64 * MEGABYTE)
        assert tracemalloc.get_traced_memory()[1] < MEGABYTE
    finally:
        tracemalloc.stop()


def test_headers_that_promise_too_much_are_refused(client):
    promise = archive_of(header((10**6, 10**6)))
    refused(client.post("/predict", content=promise), 400, "as many numbers as its shape")
    packed = archive_of(header((1,)) + bytes(4), method=zipfile.ZIP_BZIP2)
    refused(client.post("/predict", content=packed), 400, "does not use")


def test_limits_are_kept(surrogate):
    limits = Limits(body_bytes=MEGABYTE, answer_bytes=MEGABYTE, json_bytes=20_000, frames=50, points=900)
    with client_of(surrogate, limits) as client:
        refused(client.post("/predict", content=bytes(2 * MEGABYTE)), 413, "longer than 1 MB")
        many = npz(context=np.zeros((20, 2, 24, 24, 1), np.float32), num_frames=50)
        refused(client.post("/predict", content=many), 413, "ask for fewer frames")
        fine = npz(context=np.zeros((1, 2, 32, 32, 1), np.float32))
        refused(client.post("/predict", content=fine), 413, "1024 points")
        long = json.dumps({"context": CONTEXT.tolist(), "padding": " " * 20_000})
        refused(client.post("/predict", content=long), 413, "JSON may be at most")
        answer = client.post(
            "/predict", content=npz(context=CONTEXT, num_frames=50), headers={"Accept": "application/json"}
        )
        refused(answer, 413, "answers in JSON")


def test_a_prediction_that_takes_too_long_is_given_up(surrogate):
    with client_of(surrogate, Limits(seconds=0.0)) as client:
        refused(client.post("/predict", content=npz(context=CONTEXT)), 504, "takes longer than 0 s")


def test_a_full_queue_says_when_to_come_again(surrogate):
    with client_of(surrogate, Limits(running=0, waiting=0)) as client:
        response = client.post("/predict", content=npz(context=CONTEXT))
        refused(response, 503, "try again")
        assert response.headers["retry-after"] == "1"


def test_health_and_docs(client):
    assert client.get("/health").json()["status"] == "ok"
    page = client.get("/docs")
    assert "(n, 2, 24, 24, 1)" in page.text
    assert "http://127.0.0.1:8000/predict" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_the_example_of_the_docs_runs(client, surrogate, monkeypatch):
    """The code on the page, with the client in place of the network."""
    import html
    import re
    import urllib.request

    text = re.search(r"<code>(import io.*?)</code>", client.get("/docs").text, re.S).group(1)

    def urlopen(request):
        return io.BytesIO(client.post("/predict", content=request.data).content)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    names = {}
    exec(html.unescape(text), names)
    assert names["frames"].shape == (1, 4, 24, 24, 1)


def test_unknown_addresses_and_methods(client):
    refused(client.get("/nothing"), 404, "/nothing")
    refused(client.get("/predict"), 405, "GET /predict")
