"""Operations of an operator, the same for command line, admin API and console. Each noun has a module."""
