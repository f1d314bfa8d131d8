"""Flags and what they become. Each test has a process of its own: flags are global."""

import json
import re

import pytest
from absl import flags

from albert_tf.checkpoints.conversion import convert
from albert_tf.cli import script
from albert_tf.config import AlbertConfig, DTYPES
from tests.checkpoints.test_convert import stored
from tests.helpers import FIXTURES, ROOT, run_python

# As in the release (BERT's names), for run_pretraining.py.
RELEASE = dict(
    albert_config_file=None, input_file=None, output_dir=None, init_checkpoint=None,
    init_from_group0=False, max_seq_length=512, max_predictions_per_seq=20,
    do_train=True, do_eval=False, train_batch_size=4096, eval_batch_size=64,
    optimizer="lamb", learning_rate=0.00176, poly_power=1.0, num_train_steps=125000,
    num_warmup_steps=3125, start_warmup_step=0, save_checkpoints_steps=5000,
    keep_checkpoint_max=5, iterations_per_loop=1000, max_eval_steps=100,
    masked_lm_budget=0, use_tpu=False, tpu_name=None, tpu_zone=None, gcp_project=None)


def pretraining(code, *args):
    """What the code, which knows run_pretraining, prints in its last line."""
    done = run_python("-c", f"import json, sys, run_pretraining\n{code}", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_flags_of_the_release_have_its_names_and_defaults_and_all_have_help():
    defaults, helpless = pretraining(
        "flags = run_pretraining.FLAGS\n"
        "own = flags.flags_by_module_dict()\n"
        "print(json.dumps([{name: flags[name].default for name in sys.argv[1:]}, "
        "[flag.name for module in ('run_pretraining', 'albert_tf.cli.flags') "
        "for flag in own[module] if len(flag.help) < 10]]))", *RELEASE)
    assert defaults == RELEASE
    assert helpless == []


CONFIG = """
from albert_tf.cli import flags as command_line
run_pretraining.FLAGS(['script', *sys.argv[1:]])
print(json.dumps(command_line.model_config().to_dict()))
"""


def test_model_by_name_and_by_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(AlbertConfig.named("large", vocab_size=100).to_json())
    large = AlbertConfig.named(
        "large", vocab_size=100, embedding_size=64, parameter_sharing="ffn")
    overrides = "--config_overrides=embedding_size=64, parameter_sharing = ffn"
    found = pretraining(CONFIG, f"--albert_config_file={path}", overrides)
    assert found == large.to_dict()
    assert pretraining(CONFIG, "--model=large", overrides + ",vocab_size=100"
                      ) == large.to_dict()


FINE_TUNING = """
import json, sys, run_classifier
from albert_tf.cli import finetuning_flags as shared
run_classifier.FLAGS(['script', '--output_dir=/none', *sys.argv[1:]])
config = shared.model_config()
tokenizer = shared.tokenizer(config)
shared.check_start()
print(json.dumps([config.to_dict(), tokenizer.vocabulary_path,
                  run_classifier.FLAGS.do_lower_case, 'tensorflow' in sys.modules]))
"""


@pytest.mark.parametrize("flag", ["init_checkpoint", "albert_hub_module_handle"])
@pytest.mark.parametrize("format, file", [
    ("tf1", ""), ("hf", ""), ("keras_hub", ""), ("hf", "/model.safetensors")])
def test_config_and_vocabulary_of_the_model_to_start_from(format, file, flag, tmp_path):
    config = AlbertConfig(
        vocab_size=4000, embedding_size=4, hidden_size=8, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=8)
    path, _ = stored(tmp_path / "tf1", config, {})
    spm = FIXTURES / "spm" / "en4k.model"
    (tmp_path / "tf1" / spm.name).write_bytes(spm.read_bytes())
    if format != "tf1":
        path = str(tmp_path / format)
        convert(str(tmp_path / "tf1"), path, format)
    done = run_python("-c", FINE_TUNING, f"--{flag}={path}{file}", "--do_train")
    assert done.returncode == 0, done.stderr
    found, vocabulary, lower, loaded = json.loads(done.stdout.splitlines()[-1])
    found.pop("huggingface", None)
    assert found == config.to_dict()
    assert vocabulary.startswith(path) and lower and not loaded


PRETRAINING = """
import run_pretraining
from albert_tf.cli import flags as shared
run_pretraining.FLAGS(['script', '--init_checkpoint=%s', '--output_dir=/none'])
print(shared.model_config().hidden_size)
"""


def test_pretraining_takes_the_config_of_a_model_in_another_format(tmp_path):
    config = AlbertConfig(
        vocab_size=20, embedding_size=4, hidden_size=8, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=8)
    path, _ = stored(tmp_path / "tf1", config)
    convert(path, str(tmp_path / "hf"), "hf")
    done = run_python("-c", PRETRAINING % (tmp_path / "hf"))
    assert done.stdout == "8\n", done.stderr


def test_options_of_the_flags():
    found = pretraining(
        "import dataclasses\n"
        "from albert_tf.cli import flags as command_line\n"
        "run_pretraining.FLAGS(['script', *sys.argv[1:]])\n"
        "options = command_line.run_options()\n"
        "assert 'tensorflow' not in sys.modules\n"
        "print(json.dumps(dataclasses.asdict(options)))",
        "--output_dir=out", "--init_checkpoint=init", "--allow_partial_init",
        "--train_batch_size=64", "--eval_batch_size=3", "--save_checkpoints_steps=9",
        "--keep_checkpoint_max=0", "--iterations_per_loop=11", "--random_seed=12",
        "--clip_norm=2", "--gradient_accumulation_steps=4", "--jit_compile",
        "--dtype=bfloat16", "--recompute", "--num_train_steps=7", "--init_from_group0",
        "--replica_gradients=sum")
    assert found == dict(
        output_dir="out", num_train_steps=7, train_batch_size=64, eval_batch_size=3,
        iterations_per_loop=11, save_checkpoints_steps=9, keep_checkpoint_max=0,
        init_checkpoint="init", init_from_group0=True, allow_partial_init=True,
        from_scratch=True, early_stopping=0, resume_from="",
        step=dict(gradient_accumulation_steps=4, random_seed=12, clip_norm=2.0,
                  replica_gradients="sum", count_duplicate_rows=False,
                  jit_compile=True, dtype="bfloat16", recompute=True))


DTYPE_ERRORS = """
import importlib, json, sys
from absl import flags
script = importlib.import_module(sys.argv[1])
found = []
for value in sys.argv[2:]:
    flags.FLAGS.unparse_flags()
    try:
        flags.FLAGS(["script", "--dtype=" + value])
        found.append("")
    except flags.IllegalFlagValueError as error:
        found.append(str(error))
    except flags.Error as error:  # A flag that is needed is missing.
        found.append("")
print(json.dumps(found))
"""


@pytest.mark.parametrize("script", [
    "run_pretraining", "run_classifier", "run_squad", "run_race", "run_tagger"])
def test_types_of_every_script(script):
    wrong = ["fp16", "half", "bf16", "float", "float64", "FLOAT16", "mixed_float16", ""]
    done = run_python("-c", DTYPE_ERRORS, script, *DTYPES, *wrong, check=True)
    assert json.loads(done.stdout) == len(DTYPES) * [""] + [
        f"flag --dtype={value}: value should be one of <float32|bfloat16|float16>"
        for value in wrong]


def test_wrong_type_at_the_command_line_ends_in_one_sentence():
    done = run_python("run_squad.py", "--dtype=half")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(
        "FATAL Flags parsing error: flag --dtype=half: value should be one of "
        "<float32|bfloat16|float16>\n")


# In one process, since loading TensorFlow takes seconds.
DEVICES = """
import os
from albert_tf.cli import flags as command_line
from albert_tf.errors import InputError
def make(*args):
    run_pretraining.FLAGS.unparse_flags()
    for name in ("num_virtual_cpus", "distribution_strategy", "num_gpus"):
        run_pretraining.FLAGS[name].unparse()
    run_pretraining.FLAGS(["script", *args])
    return command_line.make_strategy()
found = []
# Virtual CPUs first: TensorFlow takes their number before anything else.
for args in (["--num_virtual_cpus=3"], [], ["--num_gpus=0"]):
    made = make(*args)
    found.append([type(made).__name__, made.num_replicas_in_sync])
for config in sys.argv[1:]:
    os.environ["TF_CONFIG"] = config
    try:
        make("--distribution_strategy=multi_worker_mirrored")
    except InputError as error:
        found.append(str(error))
print(json.dumps(found))
"""


@pytest.mark.long
def test_strategies_and_a_tf_config_that_is_wrong():
    no_such_worker = {"cluster": {"worker": ["127.0.0.1:1"]},
                      "task": {"type": "worker", "index": 3}}
    found = pretraining(DEVICES, "not JSON", json.dumps(no_such_worker))
    assert found[:3] == [["MirroredStrategy", 3], ["OneDeviceStrategy", 1],
                         ["OneDeviceStrategy", 1]]
    not_json, no_worker = found[3:]
    assert not_json.startswith(
        "the environment variable TF_CONFIG is not JSON (Expecting value")
    assert "index is 3, but the cluster's workers are numbered 0 to 0" in no_worker


def test_log_shows_this_project_and_the_warnings_of_others(tmp_path):
    script = tmp_path / "script.py"
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text(
        "from absl import logging\n"
        "def say():\n    logging.info('chatter')\n    logging.warning('beware')\n")
    script.write_text(
        "import sys\n"
        f"sys.path[:0] = [{str(ROOT)!r}, {str(library.parent)!r}]\n"
        "import library\nfrom absl import logging\nfrom albert_tf.cli import script\n"
        "def main(argv):\n    logging.info('ours')\n    library.say()\n"
        "script.run(main)\n")
    done = run_python(script, check=True)
    assert re.fullmatch(
        r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO ours|WARNING beware)\n){2}", done.stderr)
    assert "chatter" not in done.stderr


def test_memory_of_the_model():
    code = ("from albert_tf.jobs import parallel\n"
            "from albert_tf.cli import flags as command_line\n"
            "parallel.available_memory = lambda: 150_000_000\n"
            "parallel.has_accelerator = lambda: False\n"
            "run_pretraining.FLAGS(['script', *sys.argv[1:]])\n"
            "try: print(command_line.check_memory(command_line.model_config()) or 1)\n"
            "except ValueError as error: print(json.dumps(str(error)))")
    base = pretraining(code, "--model=base")
    assert base.startswith("the model has 11,813,810 parameters, which need 189 MB of "
                           "memory with gradients") and "150 MB are free" in base
    assert pretraining(code, "--model=base", "--nodo_train", "--do_eval") == 1
    assert pretraining(code, "--model=base", "--tpu=local") == 1
    assert "which need 236 MB of memory, but" in pretraining(
        code, "--model=xlarge", "--tpu=local")


BATCH = """
import json, sys
from albert_tf.jobs import parallel
import extract_features
from albert_tf.cli import model_flags
from albert_tf.config import AlbertConfig
parallel.available_memory = lambda: 10 ** 9
parallel.has_accelerator = lambda: False
try:
    extract_features.FLAGS(['script', '--model=m', '--input_file=f', *sys.argv[1:]])
    model_flags.check_batch_size(AlbertConfig.named('xlarge'), {})
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("flag, message", [
    ("--batch_size=512", "--batch_size=512: 512 sequences of 512 tokens need at "
                         "least .* GB of memory, but 1 GB are free"),
    ("--batch_size=99999999999999999999", "not an integer in the range"),
    ("--max_seq_length=99999999999999999999", "not an integer in the range"),
    ("--batch_size=1", "^$"), ("--layers=1", "^$")])
def test_a_batch_to_answer_fits_into_the_memory(flag, message):
    done = run_python("-c", BATCH, flag)
    assert done.returncode == 0, done.stderr
    assert re.search(message, done.stdout.strip()), done.stdout


@pytest.mark.parametrize("given, warning", [
    (["--batch=64", "--rate=0.5"],
     "Only a part of the recipe fast is used, because flags override it: --batch=64 "
     "(the recipe: 32). Leave them out to use the whole recipe."),
    (["--batch=32"], ""), ([], "")])
def test_flags_beside_a_recipe_that_use_a_part_of_it(
        given, warning, caplog, monkeypatch):
    values = flags.FlagValues()
    flags.DEFINE_integer("batch", 16, "", flag_values=values)
    flags.DEFINE_float("rate", 0.1, "", flag_values=values)
    values(["script", *given])
    monkeypatch.setattr(flags, "FLAGS", values)
    script.use_recipe("fast", {"batch": 32, "rate": 0.5}, "a paper")
    assert values.rate == 0.5 and values.batch == (64 if warning else 32)
    assert [record.getMessage() for record in caplog.records
            if record.levelname == "WARNING"] == [warning] * bool(warning)
