"""Frozen records of a run, made of plain values and NumPy arrays; rich prints them as tables."""

from millrace.tools.reports.summary import load as load
