"""A real server on a real port: its answers, clients that behave badly, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from serve_bundles import flow, full_batch
from serve_client import npz
from served import DEADLINE, serving

from factformer import load, rollout
from factformer.bundle import save_bundle

pytest.importorskip("uvicorn", reason="needs uvicorn, a development dependency")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return save_bundle(flow(), tmp_path_factory.mktemp("served") / "bundle")


@pytest.fixture(scope="module")
def server(bundle):
    with serving(bundle, body_bytes=2**20, head_seconds=2) as found:
        yield found


def post(port, body, headers=None, path="/predict"):
    """Status, headers and body of an answer, with a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def predicted(content):
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return archive["frames"]


def expected(bundle, batch, num_frames):
    with torch.no_grad():
        return torch.stack(list(rollout(load(bundle), batch, num_frames)), dim=1).numpy()


def test_a_real_server_gives_the_numbers_of_the_library(server, bundle):
    batch = full_batch(load(bundle))
    status, headers, body = post(server.port, npz(context=batch.context.numpy(), num_frames=5))
    assert status == 200
    assert headers["X-Content-Type-Options"] == "nosniff"
    np.testing.assert_allclose(predicted(body), expected(bundle, batch, 5), rtol=1e-5, atol=1e-6)


def test_a_body_of_unknown_length_is_counted(server):
    chunks = (bytes(10_000) for _ in range(150))
    status, headers, body = post(server.port, chunks)
    assert status == 413
    assert b"longer than 1.05 MB" in body
    assert headers["Connection"] == "close"


def test_garbage_is_answered_or_hung_up_on(server):
    for garbage in (b"\x00\xff" * 500 + b"\r\n\r\n", b"GET\r\n\r\n", b"POST /predict HTTP/1.1\r\nHost: x y\r\n\r\n"):
        with server.connect() as connection:
            connection.sendall(garbage)
            answer = received(connection)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert post(server.port, b"", path="/predict")[0] == 415


def received(connection):
    """All bytes until the other side hangs up."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(4096):
            parts.append(part)
    return b"".join(parts)


def test_slow_clients_are_hung_up_on(bundle):
    """Nothing said, half a head, half a body, and an answer that nobody takes: each connection ends by itself."""
    with serving(bundle, head_seconds=1, body_seconds=1, send_seconds=1) as server:
        silent, half_head, half_body, reader = (server.connect() for _ in range(4))
        half_head.sendall(b"POST /predict HTTP/1.1\r\nHo")
        head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"
        half_body.sendall(head % 5000 + b"PK\x03\x04")
        large = npz(context=np.zeros((16, 2, 24, 24, 1), np.float32), num_frames=200)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(head % len(large) + large)
        for connection in (silent, half_head):
            assert received(connection) == b""
        assert received(half_body).startswith(b"HTTP/1.1 408 ")
        deadline = time.monotonic() + DEADLINE
        while server.num_connections() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.num_connections() == 0  # the reader's too, although it has read nothing
        assert post(server.port, b"")[0] == 415
        assert server.stop() == (0, "")


def test_a_second_server_cannot_take_the_port(server, bundle, capsys):
    from factformer.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["serve", str(bundle), "--port", str(server.port)])
    assert stop.value.code == 2
    assert "choose another with --port" in capsys.readouterr().err


def test_a_running_prediction_is_finished_before_the_server_ends(bundle):
    """SIGTERM arrives while frames are predicted: the answer is whole, the exit code is 0."""
    batch = full_batch(load(bundle))
    with serving(bundle) as server, ThreadPoolExecutor(1) as thread:
        body = npz(context=batch.context.numpy(), num_frames=300)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)
        connection.request("POST", "/predict", body)
        half_open = server.connect()
        half_open.sendall(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        answer = thread.submit(connection.getresponse)
        assert post(server.port, npz(context=batch.context.numpy()))[0] == 200  # so the other is being served
        code, said = server.stop()
        assert predicted(answer.result().read()).shape[1] == 300
        half_open.close()
    assert (code, said) == (0, "")
