"""`millrace port`: the lines of a program that need a change, and the changes it makes itself."""
