"""Functions of tf.function, rewritten: loops over `tf.range` and gradient tapes become functions.

source.py      a function -> its source as a tree, and back, with the same closure
names.py       which names statements bind, and which they need
rewrite.py     the tree -> the new tree
convert.py     which functions are rewritten, and the functions that they call
runtime.py     what the new tree calls
range_loop.py  a loop over tf.range, as a native one
"""
