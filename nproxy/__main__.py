"""The program `nproxy`, also as `python -m nproxy`."""

import sys


def main() -> None:
    """Run the command line. Importing it takes a moment, in which Ctrl-C ends the program as it ends a command."""
    try:
        from nproxy.cli import main as commands
    except KeyboardInterrupt:
        sys.stderr.write("\nnproxy: stopped\n")
        sys.exit(130)  # the name of this code is among what is imported
    commands()


if __name__ == "__main__":
    main()
