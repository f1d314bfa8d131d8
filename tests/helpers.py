"""Where tests find their data."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

_shared = pathlib.Path(os.environ.get(
    "ALBERT_TF_SHARED", ROOT.parent / "shared"))
# The folder of reference outputs and real data beside the project, or None.
SHARED = _shared if (_shared / "golden" / "README.md").is_file() else None
