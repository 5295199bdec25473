"""Programs in production: `evaluate`, `data_parallel`, `fit`, several hosts, `launch`."""
