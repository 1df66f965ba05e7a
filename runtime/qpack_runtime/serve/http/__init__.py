"""HTTP: what requests and responses look like, and the endpoints that take and give them."""
