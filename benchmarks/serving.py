r"""Measures serve.py under load: requests per second and latency for 1, 8 and 64 clients.

    python -m benchmarks.serving --model=runs/sst-2 --input_file=sentences.txt \
        --output=serving.json

Each client sends one text of the file after the other for --seconds. "apart" is the server
with --batch_size=1, which computes one request at a time. Every answer is compared with
that of `albert_tf.load(model).predict`.
"""

import asyncio
import re
import subprocess
import sys
import time

import numpy as np
from absl import app, flags

from benchmarks import benchmark_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("model", None, "Model folder.", required=True)
flags.DEFINE_string("input_file", None, "Text file, one text per line.", required=True)
benchmark_flags.define_output_flag()
flags.DEFINE_list("clients", ["1", "8", "64"], "Numbers of concurrent clients.")
flags.DEFINE_float("seconds", 20.0, "Seconds per measurement.")
flags.DEFINE_integer("texts", 1000, "Number of different texts to send.")


def start(batch_size: int) -> tuple[subprocess.Popen, str, str]:
    """Starts a server; yields its address and the path of its requests."""
    server = subprocess.Popen(
        [sys.executable, "serve.py", f"--model={FLAGS.model}", "--port=0",
         f"--batch_size={batch_size}"], text=True, stderr=subprocess.PIPE)
    for line in server.stderr:
        if found := re.search(r"Serving at (http://[^/]+)(/\S+:predict)", line):
            return server, found[1], found[2]
    raise SystemExit("serve.py did not start.")


async def measure(address: str, path: str, texts: list[str], expected: list,
                  clients: int) -> dict[str, float]:
    import aiohttp

    seconds, wrong, end = [], 0, time.monotonic() + FLAGS.seconds

    async def client(session, place):
        nonlocal wrong
        while time.monotonic() < end:
            begin = time.monotonic()
            async with session.post(path, json={"instances": [texts[place]]}) as reply:
                [found] = (await reply.json())["predictions"]
            seconds.append(time.monotonic() - begin)
            wrong += not _close(found, expected[place])
            place = (place + clients) % len(texts)

    begin = time.monotonic()
    async with aiohttp.ClientSession(
            address, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session, i) for i in range(clients)))
    return {"clients": clients,
            "requests_per_second": len(seconds) / (time.monotonic() - begin),
            "median_ms": 1000 * float(np.median(seconds)),
            "p99_ms": 1000 * float(np.percentile(seconds, 99)), "wrong": wrong}


def _close(found: dict, expected: dict) -> bool:
    return all(found[name] == value if isinstance(value, str) else
               np.allclose(found[name], value, atol=1e-5)
               for name, value in expected.items())


def main(argv):
    del argv
    import albert_tf

    with open(FLAGS.input_file, encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in file][:FLAGS.texts]
    expected = albert_tf.load(FLAGS.model).predict(texts)
    rows = []
    for name, batch_size in (("batches", 32), ("apart", 1)):
        server, address, path = start(batch_size)
        try:
            for clients in map(int, FLAGS.clients):
                rows.append({"server": name, **asyncio.run(
                    measure(address, path, texts, expected, clients))})
                print("  ".join(f"{key} {value:.1f}" if isinstance(value, float) else
                                f"{key} {value}" for key, value in rows[-1].items()),
                      flush=True)
        finally:
            server.terminate()
            server.wait()
    benchmark_flags.write_output(rows)


if __name__ == "__main__":
    app.run(main)
