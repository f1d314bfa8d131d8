"""Who may import whom, by folder, and what must stay free of TensorFlow or of flags.

    python -m pytest tests/test_architecture.py
"""

import ast
import functools
import graphlib
import re

from tests.helpers import ROOT, run_python

PACKAGE = ROOT / "albert_tf"

# Modules that everyone may import; they import only each other.
GROUND = {"config", "errors", "files", "keyed_random", "options", "pictures",
          "rows", "text_files"}

# The tasks' folders: each has a head.
TASKS = sorted(path.parent.name for path in (PACKAGE / "finetuning").glob("*/head.py"))

# Folder → folders that it may import, besides the ground and itself.
MAY_IMPORT = {
    "jobs": set(),
    "text": {"jobs"},
    "tokenization": set(),
    "records": {"jobs"},
    "masking": set(),
    "pretraining_data": {"tokenization", "records", "masking", "jobs"},
    "modeling.kernels": set(),
    "modeling": {"modeling.kernels"},
    "checkpoints": {"modeling", "tokenization", "jobs"},
    "training": {"modeling", "modeling.kernels", "checkpoints", "records", "masking",
                 "jobs"},
    **{f"finetuning.{task}": {"finetuning", "training", "modeling", "checkpoints",
                              "tokenization", "records", "text.inputs"}
       for task in TASKS},
    "finetuning": {"training", "modeling", "checkpoints", "tokenization", "records",
                   "jobs", "text.inputs"},
    "features": {"finetuning", "modeling", "checkpoints", "tokenization", "text",
                 "jobs"},
    "serving": {"modeling", "modeling.kernels", "checkpoints", "tokenization", "text",
                "features", "finetuning", "jobs",
                *(f"finetuning.{task}" for task in TASKS)},
    # Nothing imports it: it stands on all that a script does.
    "from_python": {"cli", "finetuning", "training", "checkpoints", "tokenization",
                    "serving", "jobs", *(f"finetuning.{task}" for task in TASKS)},
    "cli": {"modeling.parameter_count", "training", "checkpoints", "finetuning",
            "tokenization", "records", "jobs", "serving"},
}

# The paper, in the order in which a newcomer reads it (albert_tf/__init__.py).
CORE = ("config", "masking.options", "masking.reference", "pretraining_data.options",
        "pretraining_data.instances", "modeling.layers", "modeling.encoder",
        "modeling.albert", "modeling.heads", "modeling.pretraining", "training.losses",
        "training.optimization")
# What the core imports besides itself and the ground: the same computations made fast,
# what any head is, checks of a model's inputs, and how tokens make up a sequence.
BESIDE_CORE = {"modeling.head", "modeling.inputs", "tokenization.sequences"}

# These never import TensorFlow, or only inside functions.
WITHOUT_TENSORFLOW = {"pretraining_data"}
LATE_TENSORFLOW = {"", "jobs", "text", "tokenization", "records", "masking", "cli",
                   *(f"finetuning.{task}" for task in TASKS)}
# A task's way of text in the graph, and what it stands on, apart.
WITH_TENSORFLOW = {"masking.in_training", "tokenization.in_graph",
                   *(f"finetuning.{task}.text" for task in TASKS)}

TENSORFLOW = ("tensorflow", "tf_keras", "keras", "orbit", "official",
              "tensorflow_models", "tensorflow_text")

# Modules of tf-models-official that load no TensorFlow: functions may import them,
# late all the same, so that whoever does not score does without the package.
OFFICIAL_WITHOUT_TENSORFLOW = ("official.nlp.tools.squad_evaluate_v1_1",
                               "official.nlp.tools.squad_evaluate_v2_0")


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def folder_of(module):
    """The folder a module lies in: "" is the ground."""
    return module.rpartition(".")[0]


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))
           if path.name != "__init__.py"}
SCRIPTS = sorted(ROOT.glob("*.py"))
SOURCES = [*PACKAGE.rglob("*.py"), *SCRIPTS, *(ROOT / "tests").rglob("*.py")]


@functools.cache
def imports(path):
    """(dotted name, name of the enclosing function or "") of every import."""
    found = []

    def visit(node, function):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if isinstance(node, ast.Import):
            found.extend((alias.name, function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name"
            found.extend((f"{node.module}.{alias.name}", function)
                         for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return found


def own_modules(path):
    """Modules of the package that a file imports."""
    found = set()
    for name, _ in imports(path):
        if name.startswith("albert_tf."):
            parts = name.split(".")[1:]
            # The longest name that is a module; what is left is a name in it.
            found.update([".".join(parts[:n]) for n in range(len(parts), 0, -1)
                          if ".".join(parts[:n]) in MODULES][:1])
    return found


def test_every_folder_imports_what_it_may():
    for module, path in MODULES.items():
        folder = folder_of(module)
        if module == "__main__":  # What `python -m albert_tf` runs, which nothing imports.
            continue
        assert folder or module in GROUND, (
            f"{module}: every module but the ground's lies in a folder")
        assert not folder or folder in MAY_IMPORT, f"{folder}: add it to MAY_IMPORT"
        allowed = GROUND | MAY_IMPORT.get(folder, set()) | {folder or "the ground"}
        for other in own_modules(path):
            assert other in allowed or folder_of(other) in allowed, (
                f"{module} imports {other}, which {folder or 'the ground'} may not")


def test_the_core_knows_the_paper_alone():
    """Not the tasks, which are around it, nor clocks."""
    for module in CORE:
        for other in own_modules(MODULES[module]):
            assert (other in CORE or other in GROUND | BESIDE_CORE
                    or folder_of(other) == "modeling.kernels"), (
                        f"{module} imports {other}")
        text = MODULES[module].read_text(encoding="utf-8").lower()
        for word in ("squad", "race", "tagging", "sentencetransformers"):
            assert not re.search(rf"\b{word}", text), (
                f"{module} speaks of {word}")


def test_the_package_names_the_core_in_order():
    import albert_tf

    named = re.findall(r"^ +\d+\. ([\w/]+)", albert_tf.__doc__, re.MULTILINE)
    assert tuple(name.replace("/", ".") for name in named) == CORE


def test_heads_are_defined_where_the_registry_says():
    from albert_tf.checkpoints import checkpoint
    from albert_tf.config import AlbertConfig

    for name, (module, variable) in checkpoint.HEADS.items():
        head = checkpoint.head_of(name, 3)
        assert type(head).__module__ == module and head.name == name
        assert variable in head.shapes(AlbertConfig.named("base")), name


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: own_modules(path) for module, path in MODULES.items()}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(MODULES)


def test_tensorflow_comes_late_or_not_at_all():
    for module in MODULES.keys() - WITH_TENSORFLOW:
        late = folder_of(module) in LATE_TENSORFLOW
        if late or folder_of(module) in WITHOUT_TENSORFLOW:
            for name, function in imports(MODULES[module]):
                assert name.split(".")[0] not in TENSORFLOW or function and (
                    late or name in OFFICIAL_WITHOUT_TENSORFLOW), (
                        f"{module} imports {name}")


def test_flags_are_known_to_scripts_cli_and_from_python_alone():
    for module, path in MODULES.items():
        named = {name for name, _ in imports(path)
                 if name.startswith(("absl.flags", "argparse", "click"))}
        assert not named or folder_of(module) in ("cli", "from_python"), f"{module} imports {named}"


def test_keras_is_tf_keras_and_nothing_imports_the_experiments():
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if not re.search("keras|experiments", text):
            continue
        for name, _ in imports(path):
            assert not (name + ".").startswith(
                ("keras.", "tensorflow.keras.", "tensorflow.python.keras.")), (
                    f"{path}: {name} instead of tf_keras")
            assert not name.startswith("experiments") or path.is_relative_to(ROOT / "tests")
        for node in ast.walk(ast.parse(text)):
            assert not (isinstance(node, ast.Attribute) and node.attr == "keras"
                        and isinstance(node.value, ast.Name)
                        and node.value.id in ("tf", "tensorflow")), (
                f"{path}, line {node.lineno}: import tf_keras by its own name")


def test_what_loads_late_or_not_at_all():
    """Scripts by themselves: test_readme.py."""
    light = sorted(m for m in MODULES if m not in WITH_TENSORFLOW and folder_of(m) in
                   WITHOUT_TENSORFLOW | LATE_TENSORFLOW
                   and not m.startswith("pretraining_data.beam"))
    result = run_python("-c", "\n".join([
        "import sys, run_pretraining",
        "from albert_tf.checkpoints import formats",
        "foreign = [name for name, *_ in formats._FOLDERS] + ['tf_models', 'release',"
        "           'tensor_files', 'tokenizer_files']",
        "loaded = {f'albert_tf.checkpoints.{name}' for name in foreign} & {*sys.modules}",
        "assert not loaded, loaded",
        "import albert_tf", "albert_tf.AlbertConfig.named('base')",
        "albert_tf.tokenization.FullTokenizer",
        *(f"import albert_tf.{module}" for module in light),
        *(f"import {name}" for name in OFFICIAL_WITHOUT_TENSORFLOW),
        f"loaded = {{*{TENSORFLOW}}} & {{*sys.modules}} - {{'official'}}",
        "assert not loaded, loaded"]))
    assert result.returncode == 0, result.stderr
