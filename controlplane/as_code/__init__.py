"""Management as code: compare a directory of files with the things in a control plane."""
