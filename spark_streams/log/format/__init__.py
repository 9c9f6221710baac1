"""The stored bytes of the log: record batches, records and their headers; no code here opens a file."""
