"""Progress of streaming queries: the reports of their sources, and a listener that reads them."""
