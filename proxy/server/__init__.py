"""Data path of one worker process."""
