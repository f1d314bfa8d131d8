"""Where tests find their data; a Python process of its own."""

import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

_shared = pathlib.Path(os.environ.get(
    "ALBERT_TF_SHARED", ROOT.parent / "shared"))
# The folder of reference outputs and real data beside the project, or None.
SHARED = _shared if (_shared / "golden" / "README.md").is_file() else None


# Which has no package for Windows.
HAS_TENSORFLOW_TEXT = importlib.util.find_spec("tensorflow_text") is not None


def run_python(*words, env=(), **options) -> subprocess.CompletedProcess:
    """Runs `python WORDS` in the project's folder; `env` is added to this process's."""
    return subprocess.run([sys.executable, *map(str, words)], **{
        "cwd": ROOT, "text": True, "capture_output": True, "check": False,
        "env": {**os.environ, **dict(env)}, **options})
