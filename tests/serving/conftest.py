"""Fixtures that the tests of serving share; a file may have its own of the same name."""

import asyncio
import functools
import inspect

import pytest

import albert_tf
from tests.serving import tiny_models


@pytest.fixture(scope="session", name="folder_of")
def _folder_of(tmp_path_factory):
    """Kind → the folder of a tiny model, written once."""
    root = tmp_path_factory.mktemp("tiny")
    return functools.cache(lambda kind: tiny_models.write(root / kind, kind))


@pytest.fixture(scope="session", name="tiny")
def _tiny(folder_of):
    """Kind → the model, loaded once; no test changes it."""
    return functools.cache(lambda kind: albert_tf.load(folder_of(kind)))


@pytest.fixture(name="folder")
def _folder(folder_of):
    return folder_of("classes")


@pytest.fixture(name="model")
def _model(tiny):
    return tiny("classes")


def pytest_pyfunc_call(pyfuncitem):
    """Tests may be coroutines."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.run(pyfuncitem.obj(**{
            name: pyfuncitem.funcargs[name]
            for name in inspect.signature(pyfuncitem.obj).parameters}))
        return True
    return None
