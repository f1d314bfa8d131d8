"""The format of SentencePiece's models, as protobuf has it."""

from albert_tf.errors import InputError


def model_proto():
    """SentencePiece's message ModelProto, imported when it is first wanted.

        model_proto().FromString(content).trainer_spec.model_type

    Its package carries code that one major version of protobuf made and only that one
    runs; TensorFlow decides which one is installed.
    """
    import google.protobuf

    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise
    except Exception as error:  # of protobuf: VersionError, or TypeError of older ones
        raise InputError(
            f"The installed sentencepiece does not run with protobuf "
            f"{google.protobuf.__version__} ({error}); install sentencepiece==0.2.0, "
            "which runs with all.") from error
    return sentencepiece_model_pb2.ModelProto
