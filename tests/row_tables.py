"""Parquet and Arrow files for tests, which are skipped without pyarrow.

    write(tmp_path / "x.parquet", table({"label": [0, 1]}, label=class_label("no", "yes")))
"""

import json

import pytest


def class_label(*names):
    return {"names": list(names), "_type": "ClassLabel"}


def table(columns, **features):
    """A table of columns; `features` are what `datasets` says of them in the schema."""
    pa = pytest.importorskip("pyarrow")
    made = pa.table(columns)
    if features:
        made = made.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})})
    return made


def write(path, made, rows=1000):
    """Writes a table as the name of the path says: .parquet, .feather (an Arrow file) or
    .arrow (a stream); returns the path."""
    import pyarrow as pa
    from pyarrow import ipc, parquet

    if path.suffix == ".parquet":
        parquet.write_table(made, path, row_group_size=rows)
    else:
        new = ipc.new_file if path.suffix == ".feather" else ipc.new_stream
        with pa.OSFile(str(path), "wb") as stream, new(stream, made.schema) as writer:
            writer.write_table(made, max_chunksize=rows)
    return str(path)
