"""A Cloud Storage of one bucket in this process, for TensorFlow's gs:// paths.

    with cloud_storage.serve(folder) as storage:
        subprocess.run([...], env={**os.environ, **storage.environment})
        storage.objects["run/options.json"]

TensorFlow's client knows one host, www.googleapis.com, over TLS. So this is an HTTPS proxy
whose tunnels all end here, with a certificate of its own; `environment` makes the client
use it, in processes that import TensorFlow later. It speaks the part of the JSON API that
the client uses: https://cloud.google.com/storage/docs/json_api.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import shutil
import ssl
import subprocess
import threading
import time
import urllib.parse

import pytest

BUCKET = "bucket"
HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class Storage:
    """`objects` are the bucket's, name → content; `fail` is a function of (method,
    name) that makes a request fail with the status it returns, or 0."""

    def __init__(self, environment):
        self.environment = environment
        self.objects: dict[str, bytes] = {}
        self.generations: dict[str, int] = {}
        self.uploads: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.fail = lambda method, name: 0
        self.lock = threading.RLock()

    def put(self, name, content):
        with self.lock:
            self.objects[name] = content
            self.generations[name] = time.time_ns() // 1000

    def metadata(self, name):
        content = self.objects[name]
        updated = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(
            self.generations[name] // 10 ** 6))
        return {"name": name, "bucket": BUCKET, "size": str(len(content)),
                "generation": str(self.generations[name]), "updated": f"{updated}.000Z",
                "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode()}

    def listing(self, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        items, prefixes = [], set()
        for name in sorted(self.objects):
            rest = name[len(prefix):]
            if not name.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
            else:
                items.append(self.metadata(name))
        return {"items": items[:int(query.get("maxResults", 10 ** 6))],
                "prefixes": sorted(prefixes)}


def _handler(storage, context):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_CONNECT(self):
            self.send_response(200)
            self.end_headers()
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile = self.connection.makefile("rb")
            self.wfile = self.connection.makefile("wb", buffering=0)
            self.close_connection = False

        def answer(self, status, content=b"", **headers):
            if not isinstance(content, bytes):
                content = json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def body(self):
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                content = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return content
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def handle_api(self):
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            body, method = self.body(), self.command
            found = re.fullmatch(
                r"(?:/upload)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+)(/.*)?)?)?", url.path)
            if not found:
                found = re.fullmatch(r"/([^/]+)/(.+)()", url.path)
            bucket, name, rest = (urllib.parse.unquote(part or "")
                                  for part in found.groups())
            name = query.get("name", name)
            with storage.lock:
                storage.requests.append((method, name))
                status = storage.fail(method, name)
                if status:
                    self.answer(status, {"error": {"code": status}})
                elif bucket != BUCKET:
                    self.answer(404, {"error": {"code": 404}})
                elif url.path.startswith("/upload"):
                    self.upload(method, name, query, body)
                elif "/o" not in url.path[len("/storage/v1/b/"):] and not name:
                    self.answer(200, {"name": BUCKET, "location": "HERE"})
                elif not name:
                    self.answer(200, storage.listing(query))
                elif name not in storage.objects:
                    self.answer(404, {"error": {"code": 404}})
                elif method == "DELETE":
                    del storage.objects[name]
                    self.answer(204)
                elif rest.startswith("/rewriteTo/"):
                    storage.put(rest.split("/o/", 1)[1], storage.objects[name])
                    self.answer(200, {"done": True})
                elif url.path.startswith("/storage/v1"):
                    self.answer(200, storage.metadata(name))
                else:
                    self.content(storage.objects[name])

        def upload(self, method, name, query, body):
            session = query.get("upload_id")
            if query.get("uploadType") == "resumable" and not session:
                session = str(len(storage.uploads))
                storage.uploads[session] = name
                self.answer(200, Location=(
                    f"https://{HOSTS[0]}/upload/storage/v1/b/{BUCKET}/o?"
                    f"uploadType=resumable&upload_id={session}"))
                return
            name = storage.uploads.get(session, name)
            storage.put(name, body)
            self.answer(200, storage.metadata(name))

        def content(self, content):
            ranged = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if not ranged:
                self.answer(200, content)
                return
            begin, end = int(ranged[1]), int(ranged[2]) + 1
            if begin >= len(content):
                self.answer(416)
                return
            part = content[begin:end]
            self.answer(206, part, Content_Range=(
                f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"))

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_api

    return Handler


def _certificate(folder):
    """Files of a key and of its certificate, which signs itself."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is needed, to make a certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=tests", "-addext",
         "subjectAltName=" + ",".join(f"DNS:{host}" for host in HOSTS)],
        check=True, capture_output=True)
    return key, certificate


@contextlib.contextmanager
def serve(folder: pathlib.Path):
    key, certificate = _certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    storage = Storage({})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), _handler(storage, context))
    proxy = f"http://127.0.0.1:{server.server_address[1]}"
    storage.environment = {
        "https_proxy": proxy, "HTTPS_PROXY": proxy, "no_proxy": "", "NO_PROXY": "",
        "CURL_CA_BUNDLE": str(certificate), "NO_GCE_CHECK": "true",
        "GCS_READ_CACHE_MAX_SIZE_MB": "0", "GCS_STAT_CACHE_MAX_AGE": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3"}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield storage
    finally:
        server.shutdown()
        server.server_close()
