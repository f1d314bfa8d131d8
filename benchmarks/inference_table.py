"""Prints the results of inference.py as Markdown tables.

    python -m benchmarks.inference_table benchmarks/results/inference.json
"""

import json
import sys

import numpy as np


def _table(header, rows):
    print("\n| " + " | ".join(header) + " |\n" + "| --- " * len(header) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def _columns(results):
    return [f"{row['task']} {row['dtype']}" for row in results]


def _names(results, what):
    return dict.fromkeys(name for row in results for name in row[what])


def requests(results):
    """Prints the latency of single requests in ms, and relative to ours."""
    def cell(row, name):
        if name not in row["requests"]:
            return "–"
        found = row["requests"][name]
        times = ("" if name == "ours" or not found.get("times_ours")
                 else f": {found['times_ours']:.2f}×")
        return (f"{1e3 * found['median']:.0f} ({1e3 * found['percentile_95']:.0f})"
                f"{times}")

    _table(["one by one, ms", *_columns(results)],
           [[name, *(cell(row, name) for row in results)]
            for name in _names(results, "requests")])


def batches(results):
    """Prints the sequences per second of batches in file order, and of a whole file."""
    def cell(row, name):
        if name == "ours, whole file":
            if "file" not in row:
                return "–"
            return f"{row['sequences'] / min(row['file']['seconds']):.1f}"
        if name not in row["batches"]:
            return "–"
        found = row["batches"][name]
        times = ("" if name == "ours" or "ours" not in row["batches"] else
                 f": {found['sum'] / row['batches']['ours']['sum']:.2f}×")
        return f"{row['sequences'] / found['sum']:.1f}{times}"

    _table(["sequences per second", *_columns(results)],
           [[name, *(cell(row, name) for row in results)]
            for name in (*_names(results, "batches"), "ours, whole file")])


def best(results):
    """Prints the fastest of ours and the fastest of the others."""
    def cell(row, what, ours):
        key, times, unit = (("median", 1e3, "ms") if what == "requests"
                            else ("sum", 1, "s"))
        found = {name: times * value[key] for name, value in row[what].items()
                 if name != "limit" and name.startswith("ours") == ours}
        name = min(found, key=found.get)
        return f"{found[name]:.3g} {unit} ({name})"

    for what in ("requests", "batches"):
        _table([what, *_columns(results)],
               [[whose, *(cell(row, what, ours) for row in results)]
                for whose, ours in (("ours", True), ("others", False))])


def first_answers(starts):
    """Prints the seconds to the first answer."""
    _table(["first answer", "seconds", "seconds of the cores", "MB"],
           [[name, f"{np.median(row['seconds']):.2f} ({min(row['seconds']):.2f} to "
             f"{max(row['seconds']):.2f})", f"{np.median(row['cores']):.2f}",
             f"{np.median(row['megabytes']):.0f}"] for name, row in starts.items()])


def main(path):
    with open(path, encoding="utf-8") as stream:
        found = json.load(stream)
    results = found["results"]
    _table(["", *_columns(results)],
           [["pieces on average (most)", *(
               f"{row['mean_length']:.0f} ({row['longest']})" for row in results)],
            ["padding in batches as they come", *(
                f"{100 * row['padding']:.0f} %" for row in results)],
            ["largest difference of our scores, of the largest", *(
                f"{max(row.get('differences', {'': 0}).values()):.1g}"
                for row in results)]])
    requests(results)
    batches(results)
    best(results)
    if found.get("first_answers"):
        first_answers(found["first_answers"])


if __name__ == "__main__":
    main(sys.argv[1])
