"""Speed and memory against targets and alternatives, side by side in one run: `polyreply bench NAME`."""
