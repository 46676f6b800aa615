"""What a run's exit code means (README, "What a run writes")."""

DONE = 0
FAILED = 1
USER_ERROR = 2
STOPPED_RESUME_ME = 75  # a checkpoint was written and the same command goes on from it (sysexits' EX_TEMPFAIL)


def from_child(code: int) -> int:
    """The launcher's exit code from a process's: documented codes pass through, everything else (signals too) is FAILED."""
    return code if code in (DONE, USER_ERROR, STOPPED_RESUME_ME) else FAILED
