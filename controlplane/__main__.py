"""Command line of the control plane: without a command it serves, with one it does an operator's work."""

import sys

if __name__ == "__main__":
    try:
        from controlplane.cli import main  # half a second in which Ctrl-C may come, too

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell tells of SIGINT
