"""What the web programs share: an app with strict headers, JSON errors, request logs, secrets, and a server process."""
