"""Management as code: compare a directory of configuration files with the state of a control plane."""
