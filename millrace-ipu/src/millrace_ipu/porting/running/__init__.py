"""`millrace run`: a program's imports give modules of millrace, and its devices are known."""
