"""The shells that hosts have, each as /bin/sh."""

import pytest

from supervised_jobs import FLAVOURS, make_flavour


@pytest.fixture(params=FLAVOURS)
def flavour(request, tmp_path_factory):
    return make_flavour(request.param, tmp_path_factory.getbasetemp())
