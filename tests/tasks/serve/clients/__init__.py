"""The official clients, a browser and the commands against a real server."""
