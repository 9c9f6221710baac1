"""The stored bytes of the log: record batches, records and their headers; no file is opened here."""
