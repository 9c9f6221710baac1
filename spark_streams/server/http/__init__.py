"""What the doors that speak HTTP share: a connection, its requests, and who may do what."""
