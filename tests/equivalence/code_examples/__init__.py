"""Models of the code examples on keras.io, written anew, at tiny sizes and with made-up data."""
