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

import os
from typing import Any, Optional

from absl import flags, logging

from albert_tf import files, rows, text_files
from albert_tf.checkpoints import formats, tokenizer_files, vocabulary
from albert_tf.checkpoints.folders import BEST_CHECKPOINT, find_checkpoint, folder_of
from albert_tf.cli.define import define
from albert_tf.config import AlbertConfig, CONFIG_FILE
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
    script.check_packages("tensorflow", "tf_keras")
    folder = FLAGS.output_dir
    files.check_in_tensorflow(folder, "--output_dir")
    files.check_new(folder, "--output_dir")
    paths = files.expand_patterns(FLAGS.input_file, "--input_file")
    rows.check_sentences(paths)
    beside = os.path.join(folder_of(FLAGS.init_checkpoint), CONFIG_FILE)
    foreign = (formats.read(FLAGS.init_checkpoint)
               if formats.is_foreign(FLAGS.init_checkpoint) else None)
    if not foreign:
        find_checkpoint(FLAGS.init_checkpoint)
    config = (AlbertConfig.from_json_file(FLAGS.albert_config_file or beside)
              if FLAGS.albert_config_file or not foreign else foreign.config)
    keeps = _check_vocabulary(foreign.tokenizer if foreign else tokenizer_files.find(
        folder_of(FLAGS.init_checkpoint)), config)
    known = vocabulary.kept_beside(FLAGS.init_checkpoint)
    on_bytes = Progress.of_bytes("reading", paths)
    extension = train_sentencepiece.extend(
        FLAGS.spm_model_file,
        (line for path in paths for _, line in text_files.read_lines(path, on_bytes)),
        given(train_sentencepiece.ExtendOptions, FLAGS))
    # TensorFlow takes seconds to load, so errors in the text are reported before that.
    from albert_tf.checkpoints.folders import read_tensors, write_tensors
    from albert_tf.checkpoints.restore import write_config

    tensors = vocabulary.with_new_pieces(
        {name: tensor.read() for name, tensor in foreign.tensors.items()} if foreign
        else read_tensors(FLAGS.init_checkpoint), config.vocab_size, extension.parts)
    size = config.vocab_size + len(extension.pieces)
    with files.staged(folder) as (staged,):
        files.make_directory(staged, "--output_dir")
        for name, content in (("spm.model", extension.model),
                              ("spm.vocab", extension.vocab),
                              ("new_pieces.tsv", extension.table)):
            files.write(os.path.join(staged, name), content)
        vocabulary.keep(staged, {
            **(known or keeps), **vocabulary_of(os.path.join(staged, "spm.model")),
            "size": size})
        write_config(staged, config.replace(vocab_size=size))
        write_tensors(tensors, os.path.join(staged, BEST_CHECKPOINT))
    logging.info(
        "Added %d pieces, such as %s. The text now has %d tokens instead of %d "
        "(%.1f %% fewer).", len(extension.pieces), ", ".join(extension.pieces[:5]),
        extension.pieces_after, extension.pieces_before,
        100 * (1 - extension.pieces_after / extension.pieces_before))
    logging.info("Wrote %s, %s, spm.model, spm.vocab and new_pieces.tsv to %s.",
                 BEST_CHECKPOINT, CONFIG_FILE, folder)


def _check_vocabulary(own: Optional[FullTokenizer], config: AlbertConfig
                      ) -> dict[str, Any]:
    """Raises InputError if --spm_model_file is not the model's vocabulary, by its record,
    its own files or its size; returns how the model's tokenizer cleans text."""
    path, init = FLAGS.spm_model_file, FLAGS.init_checkpoint
    tokenizer = FullTokenizer(spm_model_file=path)
    tokenizer_files.check(tokenizer, config.vocab_size)
    if known := vocabulary.kept_beside(init):
        vocabulary.check(known, {**vocabulary_of(path), **tokenizer.keeps}, init)
    if not own or known:
        return tokenizer.keeps
    if list(own.vocab) != list(tokenizer.vocab) or own.added:
        raise InputError(
            f"{path} does not have the tokens of {own.vocabulary_path}, by which the model in "
            f"{init} was made; give that model's SentencePiece model, if it has one "
            "without added tokens, or its checkpoint.")
    return own.keeps


if __name__ == "__main__":
    script.run(main)
