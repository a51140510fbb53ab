"""Command line of the control plane: without a command it serves, with one it does an operator's work."""

import sys

from controlplane.cli import main

if __name__ == "__main__":
    sys.exit(main())
