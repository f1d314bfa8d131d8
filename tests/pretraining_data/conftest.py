"""The tokenizer of these tests."""

import pytest

from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.pretraining_data.data_creation import SPM_MODEL


@pytest.fixture(scope="session")
def tokenizer():
    return FullTokenizer(spm_model_file=SPM_MODEL)
