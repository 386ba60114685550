"""Runs programs that were written for the IPU, and lists the parts that will not run."""
