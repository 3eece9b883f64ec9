"""A zoo on loopback whose server can be told to misbehave."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from factformer.zoo.index import BUNDLE_FILES

HUB = "somebody/zoo"


class Server:
    """Files on loopback, as a web server and as a Hugging Face hub.

    ``cuts`` says after how many bytes each next answer of a path breaks off.
    """

    def __init__(self):
        self.files, self.cuts, self.codes, self.asked = {}, {}, {}, []
        self.ranges = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def do_HEAD(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.http.server_port}/zoo"

    def answer(self, request):
        path = request.path.removeprefix("/zoo/").removeprefix(f"/{HUB}/resolve/main/")
        first = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.asked.append((path, first))
        codes = self.codes.get(path)
        if path not in self.files or codes:
            request.send_error(codes.pop(0) if codes else 404)
            return
        content = self.files[path]
        if not self.ranges:
            first = 0
        if first and first >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if first else 200)
        if first:
            request.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - first))
        request.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        request.send_header("X-Repo-Commit", "0" * 40)
        request.end_headers()
        if request.command == "HEAD":
            return
        cuts = self.cuts.get(path)
        request.wfile.write(content[first:][: cuts.pop(0) if cuts else None])
        request.close_connection = True

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


def publish(server, bundle, release="1", **changes):
    files = {name: (bundle / name).read_bytes() for name in BUNDLE_FILES if (bundle / name).exists()}
    server.files |= {f"flow/{release}/{name}": content for name, content in files.items()}
    listed = {name: {"sha256": hashlib.sha256(c).hexdigest(), "size": len(c)} for name, c in files.items()}
    index = {"format": "factformer zoo", "version": 1, "base": None, "hub": None}
    index["bundles"] = {"flow": {"version": release, "card": "A small flow.", "files": listed}}
    server.files["index.json"] = json.dumps({**index, **changes}).encode()
