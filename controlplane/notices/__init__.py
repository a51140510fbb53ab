"""Notices for operators, such as emergency stops and published rules, and their way to webhooks."""
