"""The rewriting of tf.function: loops over `tf.range` and gradient tapes become functions.

source.py      a function -> its syntax tree, the names in it, and back
rewrite.py     syntax tree -> rewritten syntax tree
convert.py     selects the functions to rewrite, and the functions that they call
runtime.py     functions that rewritten code calls; numbers that are part of the program
range_loop.py  a loop over tf.range, run as a native loop
"""
