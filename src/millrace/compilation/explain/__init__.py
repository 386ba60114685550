"""The key of a program, field by field, and why another program is compiled.

key.py  model_keys.py   the key of a program: all fields
fingerprint.py          the fields of a model, its layers and its variables
functions.py            the fields of a function or a class of the user's
values.py               any value as text             attributes.py   of an object
walk.py                 from one to the next; which code belongs to a library
constants.py            values that programs have as constants, and that have changed
diagnose.py  words.py   two keys: the differences, in words, and a remedy
program_difference.py   two programs in StableHLO, where their keys are equal
"""
