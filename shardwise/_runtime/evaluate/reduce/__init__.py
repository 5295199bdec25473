"""The reduction of the outputs of `fn`: on the device, then exactly on the host."""
