"""Writing tables of predictions: TSV, CSV and JSON lines; notes on lines of a file."""

import csv
import io
import json
from typing import Mapping, Sequence

from albert_tf import files, row_files, rows, text_files
from albert_tf.errors import InputError
from albert_tf.finetuning.common import write_files


def written_format_of(path: str) -> str:
    """Returns the format of a file to write, given its name."""
    kind = rows.kind_of(path)
    if kind == "parquet" or path.lower().endswith(text_files.COMPRESSED):
        raise InputError(f"{path}: predictions are written as .tsv, .csv or .jsonl, not "
                         "compressed; choose such a name.")
    return kind


def write_predictions(output_dir: str, contents: Mapping[str, str],
                      table: Sequence[Sequence[str | int]], prediction_file: str = ""
                      ) -> list[str]:
    """Writes files of a folder, and a readable table of the predictions.

    Args:
      output_dir: the folder.
      contents: file name → content.
      table: the table, whose first row names the columns.
      prediction_file: the table's path, .tsv, .csv or .jsonl; .csv and .jsonl keep the
        texts unchanged. Default: predictions.tsv in the folder.

    Returns:
      The paths of the files.
    """
    if not prediction_file:
        return write_files(output_dir, {**contents, "predictions.tsv": written(
            table, "tsv").decode()})
    files.write(prediction_file, written(table, written_format_of(prediction_file)))
    return [*write_files(output_dir, contents), prediction_file]


def written(table: Sequence[Sequence[str | int]], file_format: str) -> bytes:
    """Returns a file's content. The first row names the columns; in TSV, white space
    within a cell is written as one blank."""
    stream = io.StringIO()
    if file_format == "csv":
        csv.writer(stream, lineterminator="\n").writerows(table)
    else:
        for row in table[file_format == "jsonl":]:
            stream.write((json.dumps({
                name: float(cell) if name.startswith("probability") else cell
                for name, cell in zip(table[0], row)}, ensure_ascii=False)
                          if file_format == "jsonl" else
                          "\t".join(" ".join(str(cell).split()) for cell in row)) + "\n")
    return stream.getvalue().encode()


def line_note(path: str, numbers: list[int], what: str) -> tuple[str, ...]:
    """Returns one sentence on the lines that are `what`, or () if there are none."""
    if not numbers:
        return ()
    listed = ", ".join(map(str, numbers[:10])) + (", ..." * (len(numbers) > 10))
    line = row_files.unit(path)
    return (f"{path}: {len(numbers)} {line}(s) {what} ({line} {listed}).",)
