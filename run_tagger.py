r"""Fine-tunes ALBERT to tag words: names (entities), parts of speech.

    python run_tagger.py --train_file=train.conll --dev_file=dev.conll \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/ner --do_train --do_eval

Files are in CoNLL's column format (one word and its tag per line, a blank line between
sentences), CoNLL-U (*.conllu, --tag_column=UPOS), Parquet or Arrow with tokens and
ner_tags, or JSON lines (*.jsonl):

    {"text": "EU rejects a call", "entities": [{"start": 0, "end": 2, "type": "ORG"}]}

Once the model is trained, --do_predict needs only --output_dir and the sentences:

    python run_tagger.py --output_dir=runs/ner --test_file=mine.conll --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

from albert_tf.cli import finetune
from albert_tf.finetuning.tagging.task import TaggingCommand

finetune.define_options(TaggingCommand)


def main(argv):
    finetune.run(TaggingCommand)


if __name__ == "__main__":
    script.run(main, first_flags=finetune.first_flags(TaggingCommand))
