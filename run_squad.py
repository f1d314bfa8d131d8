r"""Fine-tunes ALBERT to answer questions about a text: SQuAD 1.1 and 2.0.

    python run_squad.py --train_file=train-v2.0.json --predict_file=dev-v2.0.json \
        --version_2_with_negative --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/squad --do_train --do_eval --do_predict

Once the model is trained, --do_predict needs only --output_dir and questions, which
need no answers:

    python run_squad.py --output_dir=runs/squad --predict_file=mine.json --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

from albert_tf.cli import finetune
from albert_tf.finetuning.squad.task import SquadCommand

finetune.define_options(SquadCommand)


def main(argv):
    finetune.run(SquadCommand)


if __name__ == "__main__":
    script.run(main, first_flags=finetune.first_flags(SquadCommand))
