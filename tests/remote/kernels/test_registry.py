from pathlib import Path

import pytest
import torch

import dflashctl_remote.kernels as package
from dflashctl_remote.kernels.registry import KERNELS, kernels_named
from dflashctl_remote.spec.errors import BadInput

FOLDER = Path(package.__path__[0])


@pytest.mark.parametrize("name", KERNELS)
def test_each_kernel_is_a_folder_that_explains_and_checks_itself(name):
    (kernel,) = kernels_named((name,))
    assert (FOLDER / name / "README.md").is_file()
    assert callable(kernel.check)


def test_no_name_means_every_kernel_in_order():
    assert tuple(kernel.name for kernel in kernels_named()) == KERNELS


def test_unknown_kernel_is_refused_with_the_names_that_are_there():
    with pytest.raises(BadInput, match="no kernel lineer_ce") as caught:
        kernels_named(("lineer_ce",))
    assert "linear_ce" in caught.value.hint


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("name", ["linear_ce", "label_argmax"])
def test_checks_pass_and_say_which_need_a_gpu(name, device):
    (kernel,) = kernels_named((name,))
    checks = kernel.check(device)
    assert not [check for check in checks if check.state == "failed"]
    assert {check.kernel for check in checks} == {name}
    if not torch.cuda.is_available():
        skipped = [check.detail for check in checks if check.state == "skipped"]
        assert skipped == ["needs a GPU"]


@pytest.mark.parametrize("name", KERNELS)
def test_importing_what_others_call_needs_no_triton(name):
    """Triton is imported by kernel.py alone, or where it is looked for."""
    for file in (FOLDER / name).glob("*.py"):
        if file.name in ("op.py", "chunk.py", "check.py", "bench.py", "reference.py"):
            top = [line for line in file.read_text().splitlines() if line.startswith(("import ", "from "))]
            assert not [line for line in top if "triton" in line.split("import")[0]], file
