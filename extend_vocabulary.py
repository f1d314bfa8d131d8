r"""Adds pieces to a model's SentencePiece vocabulary, for text from a different domain.

    python extend_vocabulary.py --input_file=medicine/*.txt --num_pieces=3000 \
        --spm_model_file=albert_base/30k-clean.model \
        --init_checkpoint=albert_base/model.ckpt-best --output_dir=runs/medicine_start

This writes the larger vocabulary (spm.model, spm.vocab, and new_pieces.tsv for you to
inspect) and a checkpoint. Existing ids and embeddings are kept; each new embedding
starts as the mean of those of the pieces it replaces. Then create records with the new
vocabulary and continue the pretraining:

    python create_pretraining_data.py --spm_model_file=runs/medicine_start/spm.model ...
    python run_pretraining.py --init_checkpoint=runs/medicine_start \
        --albert_config_file=runs/medicine_start/albert_config.json ...
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

import dataclasses
import os
from typing import Any

from absl import flags, logging

from albert_tf import files, rows, text_files
from albert_tf.checkpoints import formats, release, tokenizer_files, vocabulary
from albert_tf.checkpoints.checkpoint import Checkpoint, with_new_pieces
from albert_tf.checkpoints.folders import BEST_CHECKPOINT
from albert_tf.cli.define import define
from albert_tf.config import CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.jobs.progress import Progress
from albert_tf.options import given
from albert_tf.tokenization import train_sentencepiece
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "input_file", None,
    "Text files from the new domain with one sentence per line: paths or globs, "
    "separated by commas.", required=True)
flags.DEFINE_string(
    "spm_model_file", None, "SentencePiece model file of the model to extend.",
    required=True)
flags.DEFINE_string(
    "init_checkpoint", None,
    "The model to extend: a checkpoint, or a folder that contains one.", required=True)
flags.DEFINE_string(
    "albert_config_file", None,
    "Config file of the model. Default: albert_config.json beside the checkpoint.")
flags.DEFINE_string(
    "output_dir", None, "New folder to write the vocabulary and the checkpoint to.",
    required=True)
define(train_sentencepiece.ExtendOptions)


def main(argv):
    script.check_packages("tensorflow")
    folder = FLAGS.output_dir
    files.check_in_tensorflow(folder, "--output_dir")
    files.check_new(folder, "--output_dir")
    paths = files.expand_patterns(FLAGS.input_file, "--input_file")
    rows.check_sentences(paths)
    checkpoint, record = _checked()
    on_bytes = Progress.of_bytes("reading", paths)
    extension = train_sentencepiece.extend(
        FLAGS.spm_model_file,
        (line for path in paths for _, line in text_files.read_lines(path, on_bytes)),
        given(train_sentencepiece.ExtendOptions, FLAGS))
    extended = with_new_pieces(checkpoint, extension.parts)
    with files.staged(folder) as (staged,):
        for name, content in (("spm.model", extension.model),
                              ("spm.vocab", extension.vocab),
                              ("new_pieces.tsv", extension.table)):
            files.write(os.path.join(staged, name), content)
        vocabulary.keep(staged, {
            **record, **vocabulary_of(os.path.join(staged, "spm.model")),
            "size": extended.config.vocab_size})
        release.write(dataclasses.replace(extended, tokenizer=None), staged)
    logging.info(
        "Added %d pieces, such as %s. The text now has %d tokens instead of %d "
        "(%.1f %% fewer).", len(extension.pieces), ", ".join(extension.pieces[:5]),
        extension.pieces_after, extension.pieces_before,
        100 * (1 - extension.pieces_after / extension.pieces_before))
    logging.info("Wrote %s, %s, spm.model, spm.vocab and new_pieces.tsv to %s.",
                 BEST_CHECKPOINT, CONFIG_FILE, folder)


def _checked() -> tuple[Checkpoint, dict[str, Any]]:
    """Returns the model, and the record of how its tokenizer cleans text. Raises
    InputError if --spm_model_file is not its vocabulary, by its record, its own files or
    its size."""
    path, init = FLAGS.spm_model_file, FLAGS.init_checkpoint
    tokenizer = FullTokenizer(spm_model_file=path)
    checkpoint = formats.read(init, FLAGS.albert_config_file)
    own, known = checkpoint.tokenizer, vocabulary.kept_beside(
        os.path.dirname(checkpoint.source))
    if known:
        vocabulary.check(known, {**vocabulary_of(path), **tokenizer.keeps}, init)
    elif own and (list(own.vocab) != list(tokenizer.vocab) or own.added):
        raise InputError(
            f"{path} does not have the tokens of {own.vocabulary_path}, by which the model in "
            f"{init} was made; give that model's SentencePiece model, if it has one "
            "without added tokens, or its checkpoint.")
    return tokenizer_files.fitted(checkpoint, tokenizer), known or (own or tokenizer).keeps


if __name__ == "__main__":
    script.run(main)
