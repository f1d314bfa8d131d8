"""The protobuf message tf.train.Example, without TensorFlow.

Data creation runs in many processes that should start fast. The class lives in a
descriptor pool of its own, because TensorFlow registers the same names in the default
pool once it is imported.
"""

from google.protobuf import (
    descriptor_pb2, descriptor_pool, message, message_factory)


def _example_class() -> type[message.Message]:
    field = descriptor_pb2.FieldDescriptorProto
    proto = descriptor_pb2.FileDescriptorProto(
        name="albert_tf/example.proto", package="tensorflow", syntax="proto3")

    def add(parent, name, kind, repeated=False, type_name=None, oneof=None):
        parent.field.add(
            name=name, number=len(parent.field) + 1, type=kind, type_name=type_name,
            label=field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL,
            oneof_index=oneof)

    for name, kind in (("BytesList", field.TYPE_BYTES),
                       ("FloatList", field.TYPE_FLOAT),
                       ("Int64List", field.TYPE_INT64)):
        add(proto.message_type.add(name=name), "value", kind, repeated=True)
    feature = proto.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for name in ("bytes", "float", "int64"):
        add(feature, f"{name}_list", field.TYPE_MESSAGE, oneof=0,
            type_name=f".tensorflow.{name.capitalize()}List")
    features = proto.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", field.TYPE_STRING)
    add(entry, "value", field.TYPE_MESSAGE, type_name=".tensorflow.Feature")
    add(features, "feature", field.TYPE_MESSAGE, repeated=True,
        type_name=".tensorflow.Features.FeatureEntry")
    add(proto.message_type.add(name="Example"), "features", field.TYPE_MESSAGE,
        type_name=".tensorflow.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(proto.SerializeToString())
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tensorflow.Example"))


# As tf.train.Example: the features of one record by their names.
Example: type[message.Message] = _example_class()
