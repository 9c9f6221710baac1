"""Arrays over bytes: words of one buffer, ranges gathered into Arrow arrays, base64; they know no protocol."""
