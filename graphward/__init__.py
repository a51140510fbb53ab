"""The commands that an installation of Graphward has, apart from the two programs that they start."""
