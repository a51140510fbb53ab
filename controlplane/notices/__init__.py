"""Notices for operators, such as emergency stops and published rules, and their delivery to webhooks."""
