"""The lab for all tests in this folder: up once a session, left clean by every test. See README.md."""

from contextlib import ExitStack

import pytest

from sshlab import Lab, means

LAB = pytest.StashKey()


def pytest_terminal_summary(terminalreporter, config):
    if LAB in config.stash:
        terminalreporter.write_line(str(config.stash[LAB]))


@pytest.fixture(scope="session")
def lab(request):
    allowed = means()
    request.config.stash[LAB] = allowed
    if allowed.mode == "none":
        pytest.skip(str(allowed))
    with Lab(allowed.mode) as up:
        yield up


@pytest.fixture(autouse=True)
def _in_the_lab(request):
    """A test that uses the lab is where the operator is, and leaves nothing running on the hosts."""
    if "lab" not in request.fixturenames:
        yield
        return
    up = request.getfixturevalue("lab")
    with ExitStack() as stack:
        stack.callback(up.settle)
        stack.enter_context(up.in_operator())
        yield


@pytest.fixture
def ns_lab(lab, request):
    """The lab, if its hosts are isolated."""
    if lab.mode != "namespaces":
        pytest.skip(f"needs isolated hosts; {request.config.stash[LAB]}")
    return lab


@pytest.fixture
def jump(lab):
    return lab.hosts["jump"]


@pytest.fixture
def ct129(lab):
    return lab.hosts["ct129"]


@pytest.fixture
def kpro6(lab):
    return lab.hosts["kpro6"]


@pytest.fixture
def operator(lab, tmp_path):
    """The operator's machine, by aliases in an ssh_config that knows all hosts."""
    made = lab.operator(tmp_path)
    yield made
    made.end_started()
