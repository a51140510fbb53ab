"""Entry point of the control plane.

Without a command, start the server; otherwise run an operator's command.
"""

import sys

if __name__ == "__main__":
    try:
        from controlplane.cli import main  # Ctrl-C may come during the half second of this import.

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # exit status of a shell command that SIGINT ended
