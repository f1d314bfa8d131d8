"""Where tests find their data."""

import os
import pathlib

FIXTURES = pathlib.Path(__file__).parent / "fixtures"

_shared = pathlib.Path(os.environ.get(
    "ALBERT_TF_SHARED", pathlib.Path(__file__).parent.parent.parent / "shared"))
# The folder of reference outputs and real data beside the project, or None.
SHARED = _shared if (_shared / "golden" / "README.md").is_file() else None
