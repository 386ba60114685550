"""`python -m millrace` is the command `millrace`."""

from millrace.tools.cli.main import main

main(prog_name="millrace")
