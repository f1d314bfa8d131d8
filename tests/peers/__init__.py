"""Other libraries read what convert_checkpoint.py and export_model.py write, each in an
environment of its own. Run as a module it makes the environments, in .peers or
$ALBERT_TF_PEERS; transformers.js needs Node and npm:

    python -m tests.peers && python -m pytest -m peers

A peer's script here takes a JSON file: a list of [folder, inputs.npz, outputs.npz], or
for exports of questions to ask.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from tests.helpers import ROOT

HERE = pathlib.Path(__file__).parent
ENVIRONMENTS = pathlib.Path(os.environ.get("ALBERT_TF_PEERS", ROOT / ".peers"))
# Environment → the script that reads with it; its packages are in NAME.txt.
PEERS = {"transformers5": "read_transformers.py", "transformers4": "read_transformers.py",
         "keras_hub": "read_keras_hub.py", "tf_models": "read_tf_models.py",
         "sentence_transformers": "read_sentence_transformers.py",
         "optimum": "read_optimum.py"}
# Of transformers.js, whose packages transformers_js.json lists.
NODE = ENVIRONMENTS / "transformers_js"


def python_of(peer: str) -> pathlib.Path:
    return ENVIRONMENTS / peer / "bin" / "python"


def run(peer: str, script: str, *arguments) -> str:
    """Runs a script of this folder in a peer's environment."""
    program = ["node", str(HERE / script), str(NODE)] if script.endswith(".mjs") else [
        str(python_of(peer)), str(HERE / script)]
    done = subprocess.run(
        [*program, *map(str, arguments)],
        capture_output=True, text=True, check=False, cwd=HERE, env={
            **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow",
            "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def make() -> None:
    for peer in PEERS:
        pip = [str(python_of(peer)), "-m", "pip", "install", "--quiet"]
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENTS / peer)],
                       check=True)
        subprocess.run([*pip, "-r", str(HERE / f"{peer}.txt")], check=True)
    # As in requirements.txt: it asks for sixty packages that are not used.
    subprocess.run([str(python_of("tf_models")), "-m", "pip", "install", "--quiet",
                    "--no-deps", "tf-models-official==2.20.0"], check=True)
    if shutil.which("npm") is None:
        print("Leaving out transformers.js: there is no npm.")
        return
    NODE.mkdir(exist_ok=True)
    shutil.copy(HERE / "transformers_js.json", NODE / "package.json")
    # Its script of installation fetches what only GPUs need.
    subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"],
                   cwd=NODE, check=True)
