"""The report: what runs of the harness found, as one HTML page or as Markdown."""
