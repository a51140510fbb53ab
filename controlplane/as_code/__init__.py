"""Management as code: a directory of files, compared with the things of a control plane."""
