"""What an operator can do: one way for command line, admin API and console. One module for each noun."""
