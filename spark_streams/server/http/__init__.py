"""The common part of the doors that speak HTTP: a connection, its requests, and the rights of their users."""
