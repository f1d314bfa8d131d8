r"""Fine-tunes ALBERT on RACE: reading comprehension with four choices.

    python run_race.py --data_dir=RACE --recipe \
        --init_checkpoint=albert_base/model.ckpt-best \
        --spm_model_file=albert_base/30k-clean.model \
        --output_dir=runs/race --gradient_accumulation_steps=8 --do_predict

Trains on RACE's training set, evaluates each checkpoint on the dev set and keeps the
best. With --do_predict, answers the test set; if that has answers, its accuracy is
reported, too.

A question is four sequences: a batch of 32 is 128 sequences of up to 512 tokens, which
do not fit on most devices. --gradient_accumulation_steps=8 computes it in parts of four
questions with the same result.

Once the model is trained, --do_predict needs only --output_dir and the data:

    python run_race.py --output_dir=runs/race --data_dir=RACE \
        --nodo_train --nodo_eval --do_predict
"""

from albert_tf.cli import script  # First: Ctrl-C while the rest loads.

from albert_tf.cli import finetune
from albert_tf.finetuning.race.task import RaceCommand

finetune.define_options(RaceCommand)


def main(argv):
    finetune.run(RaceCommand)


if __name__ == "__main__":
    script.run(main, first_flags=finetune.first_flags(RaceCommand))
