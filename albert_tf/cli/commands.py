"""The command `albert`: the scripts as subcommands.

    albert classify --task_name=custom --train_file=train.csv ...
    python -m albert_tf classify ...      the same, where `albert` is not on the path

Runs the script's file as `python run_classifier.py` does, with the same flags, output and
exit status. Messages begin with "albert classify" instead of the file's name.
"""

from albert_tf.cli import script  # First, so that Ctrl-C works while the rest loads.

import os
import runpy
import sys

from albert_tf import __version__
from albert_tf.errors import InputError

# Command → (script, what it does). A command also has the name of its script.
COMMANDS = {
    "classify": ("run_classifier", "fine-tune on texts: your CSV file, GLUE"),
    "tag": ("run_tagger", "fine-tune on words: names, parts of speech"),
    "squad": ("run_squad", "fine-tune on questions about a text: SQuAD"),
    "race": ("run_race", "fine-tune on questions with choices: RACE"),
    "predict": ("predict", "labels, tags, answers, filled masks, vectors"),
    "serve": ("serve", "the same over HTTP"),
    "export": ("export_model", "to a SavedModel, ONNX, OpenVINO or TFLite"),
    "convert": ("convert_checkpoint", "between the formats of checkpoints"),
    "extract_features": ("extract_features", "vectors of texts or tokens to a file"),
    "prepare_corpus": ("prepare_corpus", "text to one sentence per line"),
    "train_sentencepiece": ("train_sentencepiece", "a vocabulary"),
    "extend_vocabulary": ("extend_vocabulary", "new tokens for a model's vocabulary"),
    "create_pretraining_data": ("create_pretraining_data", "records from text"),
    "pretrain": ("run_pretraining", "masked tokens and sentence order"),
    "count_parameters": ("count_parameters", "sizes of models"),
    "analyze_layers": ("analyze_layers", "how much each layer changes its input"),
    "quickstart": ("quickstart", "all steps of pretraining on a small text"),
}
# Headings of the commands from this one on.
_HEADINGS = {"classify": "Fine-tune", "predict": "Use", "prepare_corpus": "Pretrain",
             "count_parameters": "More"}


def help_text() -> str:
    """Returns the text of `albert --help`."""
    return "\n".join([
        "Usage: albert COMMAND --flag=value ...", "",
        *(f"{_HEADINGS.get(name, ''):<10} {name:<24} {does}"
          for name, (_, does) in COMMANDS.items()), "",
        "albert COMMAND --help lists the flags. Where a page says python NAME.py, albert",
        f"NAME does the same. This is version {__version__}; albert --version prints it."])


def find(word: str) -> str | None:
    """Returns the command that a word names, by its name or that of its script."""
    plain = word.removesuffix(".py").replace("-", "_")
    return next((name for name, (file, _) in COMMANDS.items()
                 if plain in (name, file)), None)


def _answer(word: str) -> None:
    """Prints what `albert` itself is asked for; raises InputError for other words."""
    if word == "--version":
        print(__version__)
    elif word in ("--help", "-h", "-?", "help"):
        print(help_text())
    else:
        raise InputError(
            (f"'{word}' is not a command." if word else "which command?")
            + " Write albert COMMAND --flag=value; albert --help lists the commands.")


def main() -> None:
    """Runs the command of the command line."""
    script.take_signals()
    word, *flags = sys.argv[1:] or [""]
    if name := find(word):
        script.typed_as.update(
            (file, f"albert {each}") for each, (file, _) in COMMANDS.items())
        path = os.path.join(script.FOLDER, f"{COMMANDS[name][0]}.py")
        sys.argv = [path, *flags]
        runpy.run_path(path, run_name="__main__")
    else:
        sys.argv = ["albert"]
        script.run(lambda argv: _answer(word))
