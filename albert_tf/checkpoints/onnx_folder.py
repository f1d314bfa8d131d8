"""Folders of exports for other engines, as export_model.py and the ONNX files of the
Hugging Face hub have them: `onnx` with the graphs (NAMES), config.json and tokenizer.json
as for transformers and, of export_model.py alone, portable.json and task.json.
"""

import os
from typing import Optional

from albert_tf import files
from albert_tf.errors import InputError

# What the graph does.
SETTINGS = "portable.json"
GRAPHS = "onnx"
# Type of the weights → the graph's name. transformers.js knows these names; optimum
# takes model.onnx, or the only file.
NAMES = {"float32": "model.onnx", "float16": "model_fp16.onnx",
         "bfloat16": "model_fp16.onnx", "int8": "model_quantized.onnx"}


def find(path: str) -> Optional[tuple[str, str]]:
    """Returns the folder of an export, and the graph that the path names, "" if it names
    the folder. Returns None for others, as for folders that hold weights, too, unless
    the path names a graph."""
    from albert_tf.checkpoints import huggingface  # Late: training loads no formats.

    folder, graph = os.fspath(path), ""
    if folder.endswith((".onnx", ".tflite")):
        folder, graph = os.path.dirname(folder) or ".", folder
    places = [os.path.dirname(folder) or "."] if graph and (
        os.path.basename(folder) == GRAPHS) else []
    for place in (*places, folder):
        names = files.names_in(place)
        if SETTINGS in names or huggingface.CONFIG in names and (
                graph.endswith(".onnx") if graph else
                graphs_in(place) and huggingface.weights_in(place) is None
                and "model.weights.h5" not in names):
            return place, graph
    return None


def graphs_in(folder: str) -> list[str]:
    """Returns the paths of the ONNX files in a folder and its folder `onnx`."""
    places = os.path.join(folder, GRAPHS), folder
    return [os.path.join(place, name) for place in places
            for name in files.names_in(place) if name.endswith(".onnx")]


def files_of(folder: str, graph: str) -> list[str]:
    """Returns the files of an export on which its answers depend."""
    graphs = [graph] if graph else graphs_in(folder)
    # A user's texts may be there, too. Large graphs have their weights in
    # model.onnx_data.
    return [*(os.path.join(folder, name) for name in files.names_in(folder)
              if name.endswith((".json", ".model", ".tflite"))
              or name in ("labels.txt", "vocab.txt")),
            *(os.path.join(place, name) for place, begin in map(os.path.split, graphs)
              for name in files.names_in(place or ".") if name.startswith(begin))]


def graph_of(folder: str) -> str:
    """Returns the path of the graph that a folder holds, of several by NAMES."""
    graphs = graphs_in(folder)
    known = [path for name in NAMES.values() for path in graphs
             if os.path.basename(path) == name]
    if len(graphs) > 1 and not known:
        raise InputError(f"{folder} holds several ONNX files, and none is named "
                         f"{NAMES['float32']}; give the path of one: "
                         f"{', '.join(graphs)}.")
    return [*known, *graphs][0]
