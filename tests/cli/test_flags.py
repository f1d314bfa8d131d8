"""Flags and what they become; those of scripts in processes of their own."""

import contextlib
import json
import re

import pytest
from absl import flags

from albert_tf.checkpoints.formats import convert
from albert_tf.cli import finetune, flags as cli_flags
from albert_tf.cli.define import use_recipe
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning.squad.task import SquadCommand
from albert_tf.jobs import parallel
from albert_tf.training.options import StepOptions
from tests.checkpoints.test_convert import stored
from tests.helpers import FIXTURES, ROOT, run_python

# As in the release (BERT's names).
PRETRAINING = dict(
    albert_config_file=None, input_file=None, output_dir=None, init_checkpoint=None,
    init_from_group0=False, max_seq_length=512, max_predictions_per_seq=20,
    do_train=True, do_eval=False, train_batch_size=4096, eval_batch_size=64,
    optimizer="lamb", learning_rate=0.00176, poly_power=1.0, num_train_steps=125000,
    num_warmup_steps=3125, start_warmup_step=0, save_checkpoints_steps=5000,
    keep_checkpoint_max=5, iterations_per_loop=1000, max_eval_steps=100,
    masked_lm_budget=0, use_tpu=False, tpu_name=None, tpu_zone=None, gcp_project=None)
RECORDS = dict(
    input_file=None, output_file=None, vocab_file=None, spm_model_file=None,
    input_file_mode="r", do_lower_case=True, do_whole_word_mask=True,
    do_permutation=False, favor_shorter_ngram=True, random_next_sentence=False,
    max_seq_length=512, ngram=3, max_predictions_per_seq=20, random_seed=12345,
    dupe_factor=40, masked_lm_prob=0.15, short_seq_prob=0.1)


@pytest.mark.parametrize("script, expected", [
    ("run_pretraining", PRETRAINING), ("create_pretraining_data", RECORDS)])
def test_flags_of_the_release_have_its_names_and_defaults_and_all_have_help(
        script, expected):
    done = run_python(
        "-c", f"import json, sys, {script} as script\nflags = script.FLAGS\n"
        "print(json.dumps([{name: flags[name].default for name in sys.argv[1:]}, "
        "[flag.name for flag in flags.get_key_flags_for_module(script.__name__) "
        "if len(flag.help) < 10]]))", *expected, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [expected, []]


def parsed(*words):
    values = flags.FlagValues()
    finetune.define_options(SquadCommand, values)
    values(["script", "--output_dir=/none", *words])
    return values


def test_model_by_name_and_by_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(AlbertConfig.named("large", vocab_size=100).to_json())
    large = AlbertConfig.named(
        "large", vocab_size=100, embedding_size=64, parameter_sharing="ffn")
    for model in (f"--albert_config_file={path}", "--model=large"):
        assert cli_flags.model_config(parsed(
            model, "--config_overrides=embedding_size=64, parameter_sharing = ffn,"
            "vocab_size=100")) == large


FINE_TUNING = """
import json, sys, run_classifier
from absl.flags import FLAGS
from albert_tf.cli import finetune, flags
found = []
for flag in sys.argv[1:]:
    FLAGS.unparse_flags()
    for name in ("init_checkpoint", "albert_hub_module_handle"):
        FLAGS[name].unparse()
    FLAGS(['script', '--output_dir=/none', '--do_train', flag])
    flags.use_old_flags()
    config = finetune.model_config(FLAGS)
    tokenizer = finetune.its_tokenizer(FLAGS, config)
    found.append([config.to_dict(), tokenizer.vocabulary_path, FLAGS.do_lower_case,
                  'tensorflow' in sys.modules])
print(json.dumps(found))
"""


def test_config_and_vocabulary_of_the_model_to_start_from(tmp_path):
    config = AlbertConfig(
        vocab_size=4000, embedding_size=4, hidden_size=8, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=8)
    stored(tmp_path / "tf1", config, {})
    spm = FIXTURES / "spm" / "en4k.model"
    (tmp_path / "tf1" / spm.name).write_bytes(spm.read_bytes())
    for format in ("hf", "keras_hub"):
        convert(str(tmp_path / "tf1"), str(tmp_path / format), format)
    paths = [f"{tmp_path}/{name}" for name in (
        "tf1", "hf", "keras_hub", "hf/model.safetensors")]
    done = run_python("-c", FINE_TUNING, *(f"--init_checkpoint={path}" for path in paths),
                      f"--albert_hub_module_handle={paths[0]}")
    assert done.returncode == 0, done.stderr
    for path, (found, vocabulary, lower, loaded) in zip(
            [*paths, paths[0]], json.loads(done.stdout.splitlines()[-1]), strict=True):
        found.pop("huggingface", None)
        assert found == config.to_dict()
        assert vocabulary.startswith(path.removesuffix("/model.safetensors"))
        assert lower and not loaded


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


@pytest.mark.parametrize("words, says", [
    ("--model=base --do_train", "^the model has 11,.* parameters, which need 1.. MB of "
     "memory with gradients.* 150 MB are free"),
    ("--model=base --do_eval", ""), ("--model=base --do_train --tpu=local", ""),
    ("--model=xlarge --tpu=local --do_train", "which need 236 MB of memory, but")])
def test_memory_of_the_model(words, says, monkeypatch):
    monkeypatch.setattr(parallel, "available_memory", lambda: 150_000_000)
    monkeypatch.setattr(parallel, "has_accelerator", lambda: False)
    values = parsed(*words.split())
    with pytest.raises(InputError, match=says) if says else contextlib.nullcontext():
        cli_flags.check_memory(values, cli_flags.model_config(values), StepOptions())


@pytest.mark.parametrize("given, logged", [
    (["--batch=64", "--rate=0.5"], "Flags override it: --batch=64 (the recipe: 32)."),
    (["--batch=32"], "The recipe sets --rate=0.5."),
    ([], "The recipe sets --batch=32, --rate=0.5.")])
def test_flags_beside_a_recipe_that_use_a_part_of_it(given, logged, caplog):
    values = flags.FlagValues()
    flags.DEFINE_integer("batch", 16, "", flag_values=values)
    flags.DEFINE_float("rate", 0.1, "", flag_values=values)
    values(["script", *given])
    use_recipe("fast", {"batch": 32, "rate": 0.5}, "a paper", values)
    assert values.rate == 0.5 and values.batch == (64 if "override" in logged else 32)
    assert caplog.messages[-1] == logged
