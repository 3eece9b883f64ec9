"""The server under load: many clients at once, one of them malicious; on demand."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serve_bundles import flow, full_batch
from serve_client import npz
from served import serving
from test_server import expected, post, predicted, received

from factformer import load
from factformer.bundle import save_bundle

pytestmark = pytest.mark.slow
CLIENTS, REQUESTS = 8, 200


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return save_bundle(flow(), tmp_path_factory.mktemp("loaded") / "bundle")


def misbehave(server, stop):
    """Garbage, oversize bodies and connections that are left half open, until ``stop``; how many of each kind."""
    draw, left, done = random.Random(0), [], {"garbage": 0, "oversize": 0, "half-open": 0}
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"
    while not stop.is_set():
        kind = draw.choice(sorted(done))
        done[kind] += 1
        if kind == "garbage":
            assert post(server.port, draw.randbytes(2000))[0] in (400, 415, 503)
            with server.connect() as connection:
                connection.sendall(draw.randbytes(500) + b"\r\n\r\n")
                received(connection)
        elif kind == "oversize":
            assert post(server.port, bytes(1_500_000))[0] in (413, 503)
        else:
            connection = server.connect()
            connection.sendall(draw.choice([b"", head[:30], head, head + b"PK\x03\x04"]))
            left = [*left[-8:], connection]
    return done


def test_200_requests_from_8_clients_with_one_that_misbehaves(bundle):
    surrogate = load(bundle)
    batches = [full_batch(surrogate, seed=seed) for seed in range(10)]
    bodies = [npz(context=batch.context.numpy(), num_frames=3) for batch in batches]
    answers = [expected(bundle, batch, 3) for batch in batches]
    limits = {"body_bytes": 2**20, "head_seconds": 2, "body_seconds": 2, "running": 4, "waiting": 12}
    with serving(bundle, **limits) as server, ThreadPoolExecutor(CLIENTS) as clients:

        def ask(number):
            """One request, tried again for as long as the server says that it is busy."""
            while True:
                status, headers, body = post(server.port, bodies[number % 10])
                if status != 503:
                    break
                assert "Retry-After" in headers
            assert status == 200, body
            np.testing.assert_allclose(predicted(body), answers[number % 10], rtol=1e-5, atol=1e-6)

        def round_of_requests():
            list(clients.map(ask, range(REQUESTS // 2)))
            return server.memory()

        stop = threading.Event()
        villain = clients.submit(misbehave, server, stop)  # the eighth; the others are seven
        memory = [round_of_requests() for _ in range(2)]  # 200 requests: memory after 100 and after all
        stop.set()
        done = villain.result()
        growth = memory[1] - memory[0]
        print(f"misbehaved {done}; memory {memory[0] / 2**20:.1f} MB, then {growth / 2**20:+.1f} MB")
        assert min(done.values()) >= 3
        assert growth < 32 * 2**20
        assert server.stop() == (0, "WARNING: Invalid HTTP request received.\n" * done["garbage"])
