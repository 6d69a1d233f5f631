"""What our server costs beside the bare engine that it uses."""
