"""What a person runs, and what runs on a Spark (node/)."""
