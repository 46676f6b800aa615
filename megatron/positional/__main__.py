"""`python -m megatron.positional`: the table of positional encodings; with `--markdown`, the page README.md beside this file."""

import sys

from megatron.positional.documentation import page, table


def main(arguments: list[str]) -> int:
    """Print the table, or the page."""
    if arguments not in ([], ["--markdown"]):
        print("usage: python -m megatron.positional [--markdown]", file=sys.stderr)
        return 2
    print(page() if arguments else table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
