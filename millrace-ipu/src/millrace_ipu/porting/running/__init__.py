"""`millrace run`: the imports of a program give modules of millrace."""
