import shutil

import pytest

from dflashctl.transport.local_shell import LocalShell

SHELLS = {"dash": ("dash", "-s"), "busybox": ("busybox", "sh", "-s"), "bash": ("bash", "--posix", "-s")}


@pytest.fixture(params=SHELLS)
def shell(request):
    """This machine by each kind of sh that is installed."""
    argv = SHELLS[request.param]
    if shutil.which(argv[0]) is None:
        pytest.skip(f"no {argv[0]} here")
    return LocalShell(sh=argv)
