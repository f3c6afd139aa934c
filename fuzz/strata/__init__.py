"""What to generate: named strata of lengths, page tables, values, layouts, scales and poison, which compose freely."""
