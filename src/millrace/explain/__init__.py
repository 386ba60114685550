"""What identifies a program, field by field, and why another one is compiled.

key.py                  the key of a program: all fields
fingerprint.py          the fields of a model, its layers and its variables
functions.py            the fields of a function or a class of the user's
values.py               any value as text             attributes.py   of an object
walk.py                 from one to the next; what belongs to a library
diagnose.py  words.py   two keys: what differs, in words, and what to do
program_difference.py   two programs in StableHLO, where their keys are equal
history.py              what this process has compiled
"""
