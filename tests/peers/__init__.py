"""Other libraries read what convert_checkpoint.py and export_model.py write, each in an
environment that it shares with those whose packages agree with its own. Run as a module
it makes the environments, in .peers or $ALBERT_TF_PEERS; transformers.js needs Node and
npm. With -rP the tests print how many cases were compared, and the largest difference:

    python -m tests.peers && python -m pytest -m peers -rP

A peer's script here takes a JSON file: a list of [folder, inputs.npz, outputs.npz], or
for exports of questions to ask.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.helpers import ROOT

HERE = pathlib.Path(__file__).parent
ENVIRONMENTS = pathlib.Path(os.environ.get("ALBERT_TF_PEERS", ROOT / ".peers"))
# Peer → its environment, whose packages are in NAME.txt, and the script that reads.
PEERS = {"transformers5": ("transformers5", "read_transformers.py"),
         "sentence_transformers": ("transformers5", "read_sentence_transformers.py"),
         "keras_hub": ("keras", "read_keras_hub.py"),
         "tf_models": ("keras", "read_tf_models.py")}
# Of transformers.js, whose packages transformers_js.json lists.
NODE = ENVIRONMENTS / "transformers_js"


def python_of(environment: str) -> pathlib.Path:
    return ENVIRONMENTS / environment / "bin" / "python"


def run(peer: str, *arguments) -> None:
    """Runs a peer's script; skips the test if its environment is not there."""
    if peer == "transformers_js":
        needed = NODE / "node_modules"
        program = ["node", HERE / "read_transformers_js.mjs", NODE]
    else:
        environment, script = PEERS[peer]
        needed = python_of(environment)
        program = [needed, HERE / script]
    if not needed.exists():
        pytest.skip("python -m tests.peers makes the environments")
    done = subprocess.run(
        [str(word) for word in (*program, *arguments)],
        capture_output=True, text=True, check=False, cwd=HERE, env={
            **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow",
            "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-4000:]


def make() -> None:
    for environment in dict(PEERS.values()):
        python = str(python_of(environment))
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENTS / environment)],
                       check=True)
        subprocess.run([*pip, "-r", str(HERE / f"{environment}.txt")], check=True)
    # As in requirements.txt: it asks for sixty packages that are not used.
    subprocess.run([str(python_of("keras")), "-m", "pip", "install", "--quiet",
                    "--no-deps", "tf-models-official==2.20.0"], check=True)
    if shutil.which("npm") is None:
        print("Leaving out transformers.js: there is no npm.")
        return
    NODE.mkdir(exist_ok=True)
    shutil.copy(HERE / "transformers_js.json", NODE / "package.json")
    # Its script of installation fetches what only GPUs need.
    subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"],
                   cwd=NODE, check=True)
