"""How a run comes to life: the command line, the processes, the exit codes."""
