"""Flags that contradict others or have no effect beside them."""

import os

import pytest

from albert_tf.config import AlbertConfig
from tests.checkpoints.test_convert import stored
from tests.commands import run_commands

CONFIG = AlbertConfig(
    vocab_size=30, embedding_size=4, hidden_size=8, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=8, max_position_embeddings=64)
HOME = os.path.expanduser("~")
CUSTOM = ("--task_name=custom --output_dir={data}/new --train_file={data}/train.csv "
          "--label_column=label --text_column=text ")
RECORDS = ("--input_file={data}/text.txt --output_file={data}/out --vocab_file="
           "{data}/vocab.txt ")
CORPUS = "--input_file={data}/text.txt --output_file={data}/out "
NO_FOLDER = "give hf://OWNER/NAME for a model of the Hugging Face hub"
PRETRAINING = "--input_file={data}/none --output_dir={data}/new --model=base "
LONG = "--train_step and --num_train_epochs"
NEW = "--output_dir={data}/new "

# script → (its flags, the flags that are named), of combinations that are refused
REFUSED = {
    "run_classifier": [
        (CUSTOM + "--do_train --from_scratch --init_checkpoint={data}/model",
         "--from_scratch .* --init_checkpoint"),
        (CUSTOM + "--do_train --metric=macro_f1", "--metric .* --do_eval"),
        (CUSTOM + "--do_train --text_b_column=label", "train.csv: 'label'"),
        (CUSTOM + "--do_train --init_checkpoint=", "--init_checkpoint is empty"),
        (CUSTOM + "--do_train --init_checkpoint=albert-base-v2", NO_FOLDER),
        (CUSTOM + "--do_train --num_train_epochs=2 --train_step=1000", LONG),
        (CUSTOM + "--do_train --warmup_step=2 --warmup_proportion=0.1",
         "--warmup_step and --warmup_proportion")],
    "run_tagger": [
        (NEW + "--do_train --num_train_epochs=2 --train_step=1", LONG)],
    "run_squad": [
        (NEW + "--do_train --start_n_top=3", "--start_n_top .* --version_2_with_negative"),
        (NEW + "--do_train --num_train_epochs=2 --num_train_steps=10",
         "--num_train_steps and --num_train_epochs"),
        (NEW + "--do_train --num_warmup_steps=0 --warmup_proportion=.2",
         "--num_warmup_steps and --warmup_proportion")],
    "run_race": [
        (NEW + "--data_dir={data} --max_seq_length=48 --max_qa_length=45",
         "--max_qa_length=45 .* --max_seq_length=48"),
        (NEW + "--data_dir={data} --num_train_epochs=2 --train_step=1", LONG),
        (NEW + "--data_dir={data} word", "'word'")],
    "run_pretraining": [
        (PRETRAINING + "--train_batch_size=2 --init_checkpoint=albert-base-v2", NO_FOLDER),
        (PRETRAINING + "--init_from_group0", "--init_from_group0"),
        (PRETRAINING + "--sparse_gradient_norm --gradient_accumulation_steps=2",
         "--sparse_gradient_norm .* --gradient_accumulation_steps=1"),
        (PRETRAINING + "--clip_norm=0", "--clip_norm=0")],
    "create_pretraining_data": [
        (RECORDS + "--do_permutation --masked_lm_prob=0",
         "--do_permutation .* --masked_lm"),
        ("--input_file={data}/text.txt --output_file=s3:/bucket/x",
         "--output_file=s3:/bucket/x: .* give s3://bucket/x"),
        (RECORDS + "--vocab_file={data}", "{data}: Is a directory"),
        ("--input_file={data}/text.txt,~/none,* --output_file=x", f"'{HOME}/none'"),
        ("--output_file=o", "--input_file is missing"),
        (RECORDS + "--random_next_sentence --sentence_objective=order",
         "--sentence_objective=order; give one of the two"),
        (RECORDS + "--max_seq_length=1000000",
         r"1000000 is not an integer in the range \[5, 32768\]")],
    "convert_checkpoint": [
        ("--input={data}/model --output={data}/new --format=hf --head=multiple_choice",
         "--head=multiple_choice: {data}/model"),
        ("--input={data}/model --output={data}/new --format=sentence_transformers "
         "--max_seq_length=0", "max_seq_length=0")],
    "export_model": [
        ("--model={data}/model --export_dir={data}/new --dtype=bfloat16 --format=onnx",
         "--dtype .* --format=saved_model")],
    "predict": [
        ("--model={data}/model --text_column=text", "--text_column .* --input_file"),
        ("--model= --input_file={data}/text.txt", "--model is empty"),
        ("--model={data}/model --input_file=~/none", f"{HOME}/none: No such file")]}

# script → (its flags, the warning), of combinations in which a flag has no effect
SAID = {
    "run_classifier": [
        (CUSTOM + "--do_eval --dev_file={data}/train.csv --learning_rate=1e-3 "
         "--train_step=5 --warmup_step=2 --predict_batch_size=3 --test_file=x "
         "--noexport_text --allow_partial_init",
         ["--allow_partial_init has no effect without --init_checkpoint",
          "--train_step, --warmup_step, --learning_rate have no effect without "
          "--do_train",
          "--predict_batch_size, --test_file have no effect without --do_predict",
          "--export_text has no effect without --export_dir"])],
    "run_pretraining": [
        (PRETRAINING + "--nodo_train --do_eval --num_train_steps=3 --learning_rate=1 "
         "--keep_checkpoint_max=1",
         ["--keep_checkpoint_max, --learning_rate, --num_train_steps have no effect "
          "without --do_train"]),
        (PRETRAINING + "--eval_batch_size=2", ["--eval_batch_size has no effect "
                                               "without --do_eval"])],
    "create_pretraining_data": [
        (RECORDS + "--masked_lm_prob=0 --ngram=2 --word_start=sentencepiece "
         "--sentence_objective=none --single_segment=skip --reproduce_release",
         ["--ngram has no effect without --masked_lm_prob",
          "--word_start has no effect without --spm_model_file",
          "--single_segment has no effect without --sentence_objective=order or"])],
    "prepare_corpus": [
        (CORPUS + "--input_format=text --json_field=body --keep_titles",
         ["--json_field has no effect without --input_format=auto or --input_format=jsonl",
          "--keep_titles has no effect without --input_format=auto or --input_format=wiki"
          ])]}


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    stored(folder / "model", CONFIG, {})
    (folder / "train.csv").write_text("text,label\none,0\ntwo,1\n")
    (folder / "text.txt").write_text("One sentence.\nTwo sentences.\n\nAnother.\n")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    return str(folder)


@pytest.mark.parametrize("script", sorted({*REFUSED, *SAID}))
def test_contradictions_are_refused_and_flags_without_effect_named(script, data):
    def words(text):
        return text.replace("{data}", data).split()

    refused, said = REFUSED.get(script, []), SAID.get(script, [])
    commands = {f"refused {i}": words(flags) for i, (flags, _) in enumerate(refused)}
    commands |= {f"said {i}": words(flags) for i, (flags, _) in enumerate(said)}
    with run_commands(script, commands, light={*commands}) as results:
        for i, (_, pattern) in enumerate(refused):
            results.refused(f"refused {i}", pattern.replace("{data}", data))
        for i, (_, sentences) in enumerate(said):
            for sentence in sentences:
                assert sentence in results[f"said {i}"]["log"]


@pytest.mark.long
def test_sizes_of_another_task_are_refused_by_an_export(data):
    words = (f"--model={data}/model --export_dir={data}/exported --noexport_text "
             "--task=embed --doc_stride=16").split()
    with run_commands("export_model", {"stride": words}) as results:
        results.refused("stride", "--doc_stride .* embed", loaded=True)
