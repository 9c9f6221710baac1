"""Arrays over bytes: words of one buffer, ranges gathered into Arrow arrays, rows laid out, base64; no protocol."""
