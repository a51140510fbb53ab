"""The data path of one worker."""
