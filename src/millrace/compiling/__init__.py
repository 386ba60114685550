"""Programs -> executables. Nothing else in millrace compiles a user's program."""
