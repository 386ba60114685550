"""The tasks of a schedule at run time: buffers, state and transfers of stages."""
