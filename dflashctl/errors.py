"""What a user is told when something is wrong, and the exit code that goes with it.

DflashctlError            a bug of ours, if raised bare                       exit 1
|- ConfigError            an option, a file or a value that the user gave     exit 2
|- HostError
|  |- HostUnreachable     nobody answered, nothing was run                    exit 3
|  |  |- LinkLost         the link broke before the answer: outcome unknown   exit 3
|  |- NotAllAnswered      some of several hosts gave no answer               the worst of theirs
|  |- JobFailed           the job on the host ended badly                     its own code, else 4
|- ArtifactError          incomplete or corrupt                               exit 5
|- EngineUnhealthy        a server does not answer as it should              exit 6
|- Regression             a comparison that was asked to fail did             exit 7
|- InvalidBenchmark       measured, and proves nothing                        exit 7
|- Interrupted            Ctrl-C; what is on disk resumes                     exit 130
"""


class DflashctlError(Exception):
    """One sentence (what was wanted, what was found, where), a hint (what to do next) and an exit code."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(DflashctlError):
    exit_code = 2


class HostError(DflashctlError):
    def __init__(self, message: str, *, host: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.host = host


class HostUnreachable(HostError):
    exit_code = 3


class NotAllAnswered(HostError):
    """Some hosts gave no answer; those of the others were shown."""

    def __init__(self, problems: "list[DflashctlError]") -> None:
        hosts = ", ".join(problem.host for problem in problems if isinstance(problem, HostError))
        worst = max(problems, key=lambda problem: problem.exit_code)
        super().__init__("; ".join(problem.message for problem in problems), host=hosts, hint=worst.hint)
        self.exit_code = worst.exit_code


class LinkLost(HostUnreachable):
    """What was asked for may have been done, or not, or half: the host's own state decides."""


class JobFailed(HostError):
    """A job's own `Failed` event, or the end of its log if it left none."""

    def __init__(self, message: str, *, host: str, exit_code: int = 4, hint: str = "", traceback: str = "") -> None:
        super().__init__(message, host=host, hint=hint)
        self.exit_code = exit_code
        self.traceback = traceback
        """The job's traceback, shown with --debug."""


class ArtifactError(DflashctlError):
    exit_code = 5


class EngineUnhealthy(DflashctlError):
    exit_code = 6


class Regression(DflashctlError):
    exit_code = 7


class InvalidBenchmark(DflashctlError):
    exit_code = 7


class Interrupted(DflashctlError):
    exit_code = 130
