"""The config: released files, published sizes, sharing, wrong values."""

import dataclasses
import json

import pytest

from albert_tf.config import ACTIVATIONS, SHARING, AlbertConfig
from albert_tf.errors import InputError
from tests.helpers import FIXTURES

# Keys as in the released files.
RELEASED = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "embedding_size": 128, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 512, "num_attention_heads": 12,
    "num_hidden_layers": 12, "num_hidden_groups": 1, "net_structure_type": 0,
    "gap_size": 0, "num_memory_blocks": 0, "inner_group_num": 1,
    "down_scale_factor": 1, "type_vocab_size": 2, "vocab_size": 30000,
}


def write(tmp_path, text):
    path = tmp_path / "albert_config.json"
    path.write_text(text)
    return str(path)


def test_a_released_file_is_read_whole_and_written_back(tmp_path):
    config = AlbertConfig.from_json_file(write(tmp_path, json.dumps(RELEASED)))
    assert dataclasses.replace(config, extra={}) == AlbertConfig.named("base")
    assert config.extra == {
        "net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0}
    assert json.loads(config.to_json()) == RELEASED
    again = AlbertConfig.from_json_file(write(tmp_path, config.to_json()))
    assert again == config
    config = AlbertConfig.from_dict({**RELEASED, "hidden_act": None})
    assert config.hidden_act == "linear"


@pytest.mark.parametrize("name, shape", [
    ("base", (12, 768, 12, 3072)), ("large", (24, 1024, 16, 4096)),
    ("xlarge", (24, 2048, 16, 8192)), ("xxlarge", (12, 4096, 64, 16384)),
    ("bert-base", (12, 768, 12, 3072)), ("bert-large", (24, 1024, 16, 4096)),
    ("bert-xlarge", (24, 2048, 16, 8192))])
def test_published_sizes(name, shape):
    config = AlbertConfig.named(name)
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads,
            config.intermediate_size) == shape
    assert (config.parameter_sharing, config.embedding_size) == (
        ("none", config.hidden_size) if "bert" in name else ("all", 128))


def test_changes_from_a_command_line_are_read_as_the_fields_type():
    config = AlbertConfig.named("base", embedding_size="64", hidden_dropout_prob="0",
                                parameter_sharing="ffn", use_pooler="false")
    assert repr([config.embedding_size, config.hidden_dropout_prob, config.use_pooler,
                 config.parameter_sharing]) == "[64, 0.0, False, 'ffn']"


@pytest.mark.parametrize("changes, words", [
    ({"embeding_size": 64}, ["embeding_size", "embedding_size"]),
    ({"embedding_size": "big"}, ["embedding_size", "'big'", "whole number"]),
    ({"hidden_size": 0}, ["hidden_size", "0"]),
    ({"hidden_size": 770}, ["770", "multiple", "num_attention_heads 12"]),
    ({"num_hidden_layers": 2.5}, ["num_hidden_layers=2.5", "whole number"]),
    ({"hidden_dropout_prob": 1.0}, ["hidden_dropout_prob=1.0", "from 0 to 1"]),
    ({"attention_probs_dropout_prob": -0.1}, ["attention_probs_dropout_prob", "-0.1"]),
    ({"num_hidden_layers": 10**9}, ["num_hidden_layers=1000000000", "1 to 1000."]),
    ({"hidden_size": "9" * 5000}, ["hidden_size='999"]),
    ({"hidden_dropout_prob": "nan"}, ["hidden_dropout_prob=nan"]),
    *(({"initializer_range": value}, [f"initializer_range={value}", "to 10."])
      for value in ("nan", "inf", -0.5, 0.0, 1e30)),
    ({"hidden_act": "swish"}, ["hidden_act", "swish", *ACTIVATIONS]),
    ({"use_pooler": "maybe"}, ["use_pooler='maybe': give True or False"]),
    ({"parameter_sharing": "half"}, ["parameter_sharing", "half", *SHARING]),
])
def test_wrong_values_are_named(changes, words):
    with pytest.raises(InputError) as error:
        AlbertConfig.named("base", **changes)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("text, words", [
    ("{}", ["vocab_size"]),
    ('{"vocab_size": 9, "initializer_range": NaN}', ["initializer_range=nan"]),
    ('{"vocab_size": 9, "hidden_size": 1e999}', ["hidden_size=inf"]),
    ('{"vocab_size": 9, "layer_grouping": "hf"}', ["layer_grouping='hf'"]),
])
def test_wrong_files_are_named(tmp_path, text, words):
    with pytest.raises(InputError, match="'huge'.*xxlarge"):
        AlbertConfig.named("huge")
    with pytest.raises(InputError, match="absent.json"):
        AlbertConfig.from_json_file(str(tmp_path / "absent.json"))
    path = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        AlbertConfig.from_json_file(path)
    for word in [path, *words]:
        assert word in str(error.value)


def test_group_of_layer_is_the_releases():
    table = json.loads((FIXTURES / "model" / "group_index.json").read_text())
    for row in table.values():
        config = AlbertConfig(num_hidden_layers=row["num_hidden_layers"],
                              num_hidden_groups=row["num_hidden_groups"])
        groups = [config.group_of_layer(i) for i in range(config.num_hidden_layers)]
        assert groups == row["group_of_layer"]
    uneven = table["49_49"]["group_of_layer"]
    assert uneven[1] == 0 and len(set(uneven)) == 43


@pytest.mark.parametrize("sharing, attention, ffn", [
    ("all", [0, 0, 1, 1], [0, 0, 1, 1]),
    ("attention", [0, 0, 1, 1], [0, 1, 2, 3]),
    ("ffn", [0, 1, 2, 3], [0, 0, 1, 1]),
    ("none", [0, 1, 2, 3], [0, 1, 2, 3]),
])
def test_what_the_layers_use(sharing, attention, ffn):
    config = AlbertConfig(num_hidden_layers=4, num_hidden_groups=2,
                          parameter_sharing=sharing)
    assert (config.block_indices("attention"), config.block_indices("ffn")) == (
        attention, ffn)


# ---- other libraries' -------------------------------------------------------


HUGGING_FACE = {
    "architectures": ["AlbertForMaskedLM"], "model_type": "albert", "vocab_size": 100,
    "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "classifier_dropout_prob": 0.2,
    "transformers_version": "4.57.6", "id2label": {"0": "no"}}


def test_a_config_of_hugging_face_is_read_as_it_is_meant():
    config = AlbertConfig.from_dict(HUGGING_FACE)
    assert (config.hidden_act, config.layer_norm_eps) == ("gelu", 1e-5)
    assert config.extra == {"huggingface": {"classifier_dropout_prob": 0.2}}
    assert AlbertConfig.from_dict(config.to_dict()) == config
    exact = AlbertConfig.from_dict({**HUGGING_FACE, "hidden_act": "gelu"})
    assert exact.hidden_act == "gelu_erf"
    # The release's own "gelu" stays what it is.
    assert AlbertConfig.from_dict({"hidden_act": "gelu"}).hidden_act == "gelu"


@pytest.mark.parametrize("changes, words", [
    ({"hidden_act": "swish"}, "hidden_act='swish'.*gelu_new"),
    ({"model_type": "bert"}, "model_type='bert'"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type")])
def test_what_cannot_be_computed_of_them_is_named(changes, words):
    with pytest.raises(InputError, match=words):
        AlbertConfig.from_dict({**HUGGING_FACE, **changes})
