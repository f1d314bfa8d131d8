"""Who may import whom, and what must stay free of TensorFlow or of flags."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "albert_tf"

# A module imports only from lower levels, and from its own level in its own
# folder. Levels 0 and 1 never load TensorFlow.
LEVELS = {
    # What stands on nothing: errors, files, the config, pieces of text.
    "errors": 0, "files": 0, "config": 0, "progress": 0,
    "text_cleaning": 0, "wordpiece": 0, "sentence_pieces": 0, "tokenization": 0,
    "sequences": 0, "sentence_splitting": 0, "corpus": 0, "python_prose": 0,
    "example_message": 0, "record_files": 0, "record_vocabulary": 0,
    "record_summaries": 0, "parameter_groups": 0, "run_log": 0, "stop_signals": 0,
    "run_options": 0, "metrics": 0, "counter_random": 0, "worker_pool": 0,
    "work_folder": 0, "growing_file": 0, "text_spans": 0, "part_files": 0,
    # Made of those, still without TensorFlow.
    "masking": 1, "pretraining_instances": 1, "pretraining_summary": 1,
    "summary_picture": 1,
    "batch_masking": 1, "token_encoding": 1, "token_parts": 1, "token_store": 1,
    "plan_draws": 1, "plan_walks": 1, "instance_plans": 1,
    "corpus_preparation": 1, "vocabulary": 1, "parameter_count": 1,
    "tasks.race": 1,
    "tasks.tables": 1, "tasks.classification": 1, "tasks.glue": 1,
    "tasks.custom": 1, "tasks.recipes": 1,
    "tasks.squad": 1, "tasks.squad_alignment": 1,
    "tasks.squad_predictions": 1, "tasks.squad_scoring": 1,
    "featurizing": 1, "task_folder": 1,
    # Records, model, optimizer, checkpoints.
    "records": 2, "batch_records": 2,
    "global_shuffle": 2, "growing_shards": 2, "instance_records": 2,
    "record_masks": 2, "dynamic_masking": 2,
    "input_pipeline": 2, "fused": 2, "shared_kernels": 2,
    "recomputing": 2, "layers": 2, "token_rows": 2, "blocks": 2, "modeling": 2,
    "heads": 2, "losses": 2, "loss_scaling": 2, "learning_rate": 2,
    "optimization": 2, "checkpoint_files": 2, "checkpoint": 2, "run_folder": 2,
    "cluster": 2, "replica_batches": 2,
    "finetuning_heads": 2, "finetuning_losses": 2,
    "feature_specs": 2, "feature_table": 2, "feature_files": 2, "length_batching": 2,
    "serving": 2,
    # Whole jobs: training, writing records, the baselines of an evaluation.
    "training_steps": 3, "evaluation_steps": 3, "run_start": 3, "training": 3,
    "pretraining_data": 3, "release_data": 3, "local_data": 3,
    "beam_stages": 3, "beam_writing": 3, "beam_data": 3,
    "baselines": 3, "finetuning": 3,
    "model_export": 3,
    "command_line": 4, "finetuning_flags": 4,
}

TENSORFLOW = ("tensorflow", "tf_keras", "keras", "orbit", "official",
              "tensorflow_models", "tensorflow_text")

# Modules of tf-models-official that load no TensorFlow: functions may import them,
# late all the same, so that whoever does not score does without the package.
WITHOUT_TENSORFLOW = ("official.nlp.tools.squad_evaluate_v1_1",
                      "official.nlp.tools.squad_evaluate_v2_0")

# Functions of levels 0 and 1 that import TensorFlow when they are called: paths
# with a scheme go through tf.io.gfile.
LATE_TENSORFLOW = {("files", "_gfile"), ("files", "_remote_errors")}

# Modules above level 1 that the scripts that create data load: they too import
# TensorFlow late.
LIGHT = ("command_line", "finetuning_flags", "records", "pretraining_data")


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))
           if path.name != "__init__.py"}
SCRIPTS = sorted(ROOT.glob("*.py"))
SOURCES = [*PACKAGE.rglob("*.py"), *SCRIPTS, *(ROOT / "tests").rglob("*.py")]


def imports(tree):
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

    visit(tree, "")
    return found


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def own_modules(path):
    """Modules of the package that a file imports."""
    found = set()
    for name, _ in imports(parse(path)):
        if name.startswith("albert_tf."):
            parts = name.split(".")[1:]
            # The longest name that is a module; what is left is a name in it.
            found.update([".".join(parts[:n]) for n in range(len(parts), 0, -1)
                          if ".".join(parts[:n]) in MODULES][:1])
    return found


def test_every_module_has_a_level():
    new = sorted(set(MODULES) - set(LEVELS))
    assert not new, (
        f"{', '.join(new)}: add the module to LEVELS in {pathlib.Path(__file__).name}, "
        "at the lowest level that its imports allow")
    gone = sorted(set(LEVELS) - set(MODULES))
    assert not gone, f"{', '.join(gone)}: no such module; take it out of LEVELS"


@pytest.mark.parametrize("module", sorted(set(MODULES) & set(LEVELS)))
def test_imports_go_down(module):
    folder = module.rpartition(".")[0]
    for other in own_modules(MODULES[module]) & set(LEVELS):
        lower = LEVELS[other] < LEVELS[module]
        sibling = (LEVELS[other] == LEVELS[module]
                   and other.rpartition(".")[0] == folder)
        assert lower or sibling, (
            f"{module} of level {LEVELS[module]} imports {other} of level "
            f"{LEVELS[other]}")


def test_no_module_imports_itself_by_way_of_others():
    graph = {module: own_modules(path) for module, path in MODULES.items()}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(MODULES)


@pytest.mark.parametrize(
    "module", sorted(m for m in MODULES if LEVELS.get(m, 2) < 2))
def test_levels_0_and_1_import_no_tensorflow(module):
    for name, function in imports(parse(MODULES[module])):
        if name.split(".")[0] in TENSORFLOW:
            assert (module, function) in LATE_TENSORFLOW or (
                name in WITHOUT_TENSORFLOW and function), (
                f"{module} of level {LEVELS[module]} imports {name}")


FLAGS_KNOWN_TO = ("command_line", "finetuning_flags")


def test_flags_are_known_to_scripts_and_the_top_level_alone():
    for module, path in MODULES.items():
        named = {name for name, _ in imports(parse(path))
                 if name.startswith(("absl.flags", "argparse", "click"))}
        assert not named or module in FLAGS_KNOWN_TO, f"{module} imports {named}"


def test_keras_is_tf_keras():
    for path in SOURCES:
        tree = parse(path)
        for name, _ in imports(tree):
            assert not (name + ".").startswith(
                ("keras.", "tensorflow.keras.", "tensorflow.python.keras.")), (
                    f"{path}: {name} instead of tf_keras")
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.Attribute) and node.attr == "keras"
                        and isinstance(node.value, ast.Name)
                        and node.value.id in ("tf", "tensorflow")), (
                f"{path}, line {node.lineno}: import tf_keras by its own name")


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          check=False, cwd=ROOT)


def test_tokenization_and_data_creation_load_no_tensorflow():
    light = sorted(m for m in MODULES if LEVELS.get(m, 2) < 2 or m in LIGHT)
    code = "\n".join([
        "import sys",
        "import albert_tf",
        "from albert_tf import tokenization, pretraining_instances",
        "albert_tf.AlbertConfig.named('base')",
        *(f"import albert_tf.{module}" for module in light),
        f"loaded = [name for name in {TENSORFLOW} if name in sys.modules]",
        "assert not loaded, loaded"])
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_the_allowed_modules_of_tf_models_load_no_tensorflow():
    result = run_python("\n".join([
        "import sys", *(f"import {name}" for name in WITHOUT_TENSORFLOW),
        "assert 'tensorflow' not in sys.modules and 'tf_keras' not in sys.modules"]))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("script", [path.name for path in SCRIPTS])
def test_scripts_start_without_tensorflow(script):
    """--help must come at once, and the scripts that create data never load it."""
    result = run_python(
        f"import sys, importlib.util as u\n"
        f"spec = u.spec_from_file_location('script', {script!r})\n"
        "spec.loader.exec_module(u.module_from_spec(spec))\n"
        "assert 'tensorflow' not in sys.modules")
    assert result.returncode == 0, result.stderr


def test_public_names_load_their_modules():
    import albert_tf

    for name in dir(albert_tf):
        assert getattr(albert_tf, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Albert'"):
        albert_tf.Albert


def when_imported(tree):
    """Nodes that run when a module is imported: all but the bodies of functions."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for decorator in getattr(child, "decorator_list", ()):
                yield from ast.walk(decorator)
        else:
            yield child
            yield from when_imported(child)


def test_test_files_load_without_the_shared_folder():
    """One that does not ends the whole run where the folder is not."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in when_imported(parse(path)):
            joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            assert not (joined and isinstance(node.left, ast.Name)
                        and node.left.id == "SHARED"), (
                f"{path}, line {node.lineno}: SHARED may be None when this runs")
