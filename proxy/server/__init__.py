"""Data path of one worker."""
