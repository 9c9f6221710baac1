"""Operations on arrays of bytes, for any protocol: loads, ranges gathered into Arrow arrays, row layout, base64."""
