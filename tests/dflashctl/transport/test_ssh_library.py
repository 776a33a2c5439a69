import subprocess
import sys

LOADS = """
import sys
from dflashctl.transport.ssh_library import load_connection
connect = load_connection()
from dflashctl.transport import ssh_connection
assert connect is ssh_connection.connect
print("paramiko" in sys.modules, "invoke" in sys.modules)
import invoke
print(invoke.__name__)
"""


def test_paramiko_loads_without_the_task_runner_which_others_may_still_load():
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=False)
    assert done.stdout == "True False\ninvoke\n", done.stderr
