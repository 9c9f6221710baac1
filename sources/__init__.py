"""The formats, one module each: a DataSource that Spark finds by its name, with the client that it opens."""
