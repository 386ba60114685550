"""Functions of tf.function, rewritten: loops over `tf.range` and gradient tapes become functions.

source.py      a function -> its source as a tree, the names in it, and back
rewrite.py     the tree -> the new tree
convert.py     which functions are rewritten, and the functions that they call
runtime.py     what the new tree calls, and numbers that are part of the program
range_loop.py  a loop over tf.range, as a native one
"""
