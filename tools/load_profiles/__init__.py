"""What `make profile` runs; the profiles themselves are in perf_analyzer_configs/."""
