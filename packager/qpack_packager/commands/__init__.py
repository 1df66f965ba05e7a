"""What the commands print: plan, inspect, diff."""
