"""A server in a process of its own, and raw connections to it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import torch

DEADLINE = 120
"""Seconds that any answer may take on a busy machine."""


class Server:
    """A running server."""

    def __init__(self, process, port):
        self.process, self.port = process, port

    def memory(self):
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))

    def num_connections(self):
        """Connections that the server has open on its port, as the kernel says."""
        with open(f"/proc/{self.process.pid}/net/tcp", encoding="utf-8") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        established = [row for row in rows if row[3] == "01"]
        return sum(int(row[1].split(":")[1], 16) == self.port for row in established)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)

    def stop(self):
        """SIGTERM; the exit code and what was said to stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, said


PROGRAM = """
import json, sys
from factformer.serve.launch import serve
from factformer.serve.limits import Limits

def started(server):
    print(json.dumps({"port": server.port}), flush=True)

serve(sys.argv[1], port=0, device="cpu", limits=Limits(**json.loads(sys.argv[2])), started=started)
"""


@contextmanager
def serving(bundle, **limits):
    """A server with these limits, on a port of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(bundle), json.dumps(limits)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {process.communicate()[1]}")
        yield Server(process, json.loads(line)["port"])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def serving_here(surrogate):
    """A server of a surrogate in a thread of this process; its address."""
    import uvicorn

    from factformer.serve.app import build_app
    from factformer.serve.connection import impatient
    from factformer.serve.launch import open_port
    from factformer.serve.limits import Limits
    from factformer.serve.predictor import Predictor

    limits = Limits()
    app = build_app(Predictor(surrogate, torch.device("cpu"), limits))
    server = uvicorn.Server(uvicorn.Config(app, http=impatient(limits), ws="none", log_level="warning"))
    with open_port("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(DEADLINE)
