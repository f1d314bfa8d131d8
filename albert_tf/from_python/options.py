"""The options of `albert_tf.finetune`, for type checkers; tests/test_public_interface.py
compares them with those of the scripts."""

from typing import Any, Mapping, Optional, Sequence, TypedDict

_Flag = Optional[bool]
_Int = Optional[int]
_Float = Optional[float]
_Text = Optional[str]
_List = Optional[str | Sequence[str]]

Options = TypedDict("Options", {
    "albert_dropout_prob": _Float, "allow_partial_init": _Flag,
    "answer_at_threshold": _Flag, "answer_language": _Text,
    "class_weights": None | str | Sequence[str] | Mapping[Any, Any],
    "clip_norm": _Float,
    "config_overrides": _List, "data_format": _Text, "delimiter": _Text,
    "distribution_strategy": _Text, "do_lower_case": _Flag, "doc_stride": _Int,
    "dropout_prob": _Float, "dtype": _Text, "early_stopping": _Int, "end_n_top": _Int,
    "eval_batch_size": _Int, "from_scratch": _Flag, "gradient_accumulation_steps": _Int,
    "header": _Flag, "iterations_per_loop": _Int, "jit_compile": _Flag,
    "keep_checkpoint_max": _Int, "label_all_tokens": _Flag, "label_separator": _Text,
    "label_threshold": _Float, "labels": None | str | Sequence[Any],
    "learning_rate": _Float, "max_answer_length": _Int, "max_query_length": _Int,
    "max_seq_length": _Int, "metric": _Text, "multi_label": _Flag, "n_best_size": _Int,
    "null_score_diff_threshold": _Float, "num_gpus": _Int, "num_length_buckets": _Int,
    "num_seeds": _Int, "num_train_epochs": _Float, "num_train_steps": _Int,
    "num_virtual_cpus": _Int, "num_warmup_steps": _Int, "num_workers": _Int,
    "optimizer": _Text, "random_seed": _Int, "recompute": _Flag, "regression": _Flag,
    "replica_gradients": _Text, "restart_on_failure": _Flag, "resume_from": _Text,
    "save_checkpoints_steps": _Int, "scheme": _Text, "sparse_gradient_norm": _Flag,
    "split_words": _Text, "start_n_top": _Int, "strip_accents": _Flag,
    "strip_numbers": _Flag, "temperature": _Float, "test_tags": _Flag, "tpu": _Text,
    "train_batch_size": _Int, "train_step": _Int, "version_2_with_negative": _Flag,
    "warmup_proportion": _Float, "warmup_step": _Int}, total=False)
