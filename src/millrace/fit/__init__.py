"""What Keras's fit, evaluate and predict ask of an attached model, and what they are given."""
