"""Adding up: what `fn` returns, on the device and then on the host, exactly."""
