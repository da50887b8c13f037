"""Long runs against a real server: traffic of all kinds, overload, and loads and unloads."""
