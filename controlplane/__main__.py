"""Program of the control plane: the server, and the commands for operators.

Without a command, the program starts the server. If a command is given, the program runs that command for the
operator.
"""

import sys

if __name__ == "__main__":
    try:
        from controlplane.cli import main  # Ctrl-C may come during the half second of this import.

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # exit status of a shell command that SIGINT ended
