"""Server of the S3 protocol on this machine (moto) for tests and measurements, with a latency and counts of bytes.

    python -m experiments.bench.s3_server --latency 0.02

prints the address that AWS_ENDPOINT_URL wants, and serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

STATISTICS = "/gst-statistics"


class Server:
    """Server in a thread of this process, at a free port.

    Attributes:
        sent: bytes of objects that were read, by their key.
        requests: by method.
    """

    def __init__(self, latency: float = 0.0) -> None:
        self.latency = latency
        self.sent, self.requests = Counter[str](), Counter[str]()
        self._lock = threading.Lock()  # moto closes an object that another thread overwrites
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == STATISTICS:
            start_response("200 OK", [])
            yield f"{sum(self.sent.values())} {self.requests['GET']}".encode()
            return
        time.sleep(self.latency)
        self.requests[method] += 1
        with self._lock:
            parts: Iterable[bytes] = self._application(environ, start_response)
        for part in parts:
            if method == "GET":
                self.sent[path] += len(part)
            yield part

    def close(self) -> None:
        """Stop serving: connections are refused."""
        self._server.shutdown()
        self._server.server_close()


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *arguments: Any) -> None:
        """Print nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer (default: %(default)s)")
    print(Server(parser.parse_args().latency).endpoint, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
