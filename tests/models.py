"""Models with a head, and what heads learn, by the names that tests call them."""

from albert_tf.finetuning.classification.head import Classification
from albert_tf.finetuning.race.head import MultipleChoice
from albert_tf.finetuning.squad.head import ConditionalSpans, Spans
from albert_tf.finetuning.tagging.head import TokenClassification
from albert_tf.modeling.models import AlbertForTask
from albert_tf.modeling.pretraining import AlbertForPreTraining  # noqa: F401

CLASSIFICATION, REGRESSION, CHOICE, TAGGING, SPANS, CONDITIONAL_SPANS = (
    head.objective() for head in (
        Classification(3), Classification(1), MultipleChoice(), TokenClassification(4),
        Spans(), ConditionalSpans()))


def classifier(config, num_labels, dropout_prob=0.1, problem_type=""):
    return AlbertForTask(config, Classification(num_labels, dropout_prob, problem_type))


def multiple_choice(config, dropout_prob=0.1):
    return AlbertForTask(config, MultipleChoice(dropout_prob=dropout_prob))


def tagger(config, num_labels, dropout_prob=0.1):
    return AlbertForTask(config, TokenClassification(num_labels, dropout_prob))


def spans(config, mask_padding=True):
    return AlbertForTask(config, Spans(mask_padding=mask_padding))


def conditional_spans(config, start_n_top=5, end_n_top=5, dropout_prob=0.1):
    return AlbertForTask(config, ConditionalSpans(
        start_n_top=start_n_top, end_n_top=end_n_top, dropout_prob=dropout_prob))
