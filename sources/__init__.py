"""The DataSources of the formats, one module each, with the function that opens the format's client."""
