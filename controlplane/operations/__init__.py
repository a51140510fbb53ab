"""Operations of operators, on which the command line, the admin API and the console are built.

Each module of this package has the operations on one kind of object, such as apps or rulesets.
"""
