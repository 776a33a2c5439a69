"""Real hosts on one machine, for tests: see README.md beside this folder."""

from sshlab.host import Done as Done
from sshlab.host import Host as Host
from sshlab.host import LabError as LabError
from sshlab.lab import Lab as Lab
from sshlab.means import Means as Means
from sshlab.means import means as means
from sshlab.operator_side import Operator as Operator
from sshlab.processes import Process as Process
