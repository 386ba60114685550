"""Devices that a strategy describes: one TOML file for each kind, and what reads them.

A file has the name that `Strategy(target=...)` takes. To add a kind of device, add a file.
"""
